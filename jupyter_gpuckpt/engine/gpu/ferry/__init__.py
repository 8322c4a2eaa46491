"""The ferry: GPU memory is handed to init and back, without the copies of the CUDA driver.

- `ferries`: the ferries of a tree's processes during one freeze.
- `ferry.c`: the library in kernels that keeps GPU memory for the ferry.
- `ferry`: GPU memory is handed to init instead of being copied by the driver.
- `ferry_copies`: copies of a ferry's memory in a file.
- `ferry_children.c`: loading of this library into processes that the program starts with its own interpreter.
- `ferry_copy.c`: copies between GPU memory and files on a tmpfs, through page-locked buffers.
- `ferry_digest.c`: digests of GPU memory, computed on the GPU.
- `ferry_elsewhere.c`: copies of memory that is on another GPU than that of the current context, or on two GPUs.
- `ferry_errors`: the errors of the ferry.
- `ferry_fills`: the filling of a resumed ferry's memory from the store.
- `ferry_gate.S`: the gate of gpu-ferry.so.
- `ferry_imports.c`: memory of other processes that the program imports by itself, counted.
- `ferry_ipc.c`: CUDA IPC for memory of the ferry.
- `ferry_orders`: the orders to the ferry library of one process.
- `ferry_peers.c`: peer access for memory from cuMemCreate.
- `ferry_room`: the room on the GPUs for memory that init holds and that must be given back to its process, and which GPU has how much.
- `ferry_trial`: the trial of the ferry on this machine.
- `ferry_windows`: windows of a ferry's memory, used when RAM is short.
- `trial_program`: the program of a trial of the ferry.
"""
