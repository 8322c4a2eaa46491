"""Conversion of memory and files to chunks in a store, and back.

- `chunking`: content-defined boundaries of chunks.
- `composing`: composition of chunks of which few pages changed, from parts of stored chunks and a chunk of the changed pages.
- `compression`: compression of chunks.
- `fork_server`: the program that `worker_processes.py` starts.
- `pack`: the storing of sources of bytes as chunks.
- `pack_client`: the caller's side of a pack worker.
- `pack_worker`: the worker's side of packing.
- `partial`: sources of which a file has only what changed.
- `reading_order`: the reading order of streams.
- `segments`: parts of sources, each of which is packed by itself.
- `sinks`: sinks that write a stream to a file.
- `spans`: runs: neighboring chunks in a pack that are read together, decompressed, verified and written to their targets.
- `unpack`: the writing of stored chunks to sinks of bytes.
- `unpack_client`: the caller's side of unpack workers.
- `unpack_worker`: the worker's side of unpacking.
- `unpacked_file`: the bytes of some streams, read and verified once, in memory.
- `worker_messages`: messages between this process and a worker.
- `worker_processes`: worker processes, forked from a server.
- `worker_threads`: distribution of tasks to threads.
- `working_memory`: the memory budget of a save or resume.
- `written`: a record of the bytes that an unpacking has written.
"""
