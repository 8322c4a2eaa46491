"""The worker's side of packing: it reads segments, cuts them and compresses the chunks that the store lacks.

See also: `pack_client.py`, the caller's side, which defines the messages.
"""

from __future__ import annotations

import ctypes
import mmap
import socket
from pkgutil import resolve_name

import msgspec

from ..errors import record_of
from ..store.codecs import RAW
from ..wire.manifest_records import Chunk
from .composing import Composer
from .compression import Compressor
from .pack_client import (
    HANDED_BYTES,
    PLACE_BYTES,
    PLACES,
    ChunksToCompress,
    Cut,
    Failed,
    PackTask,
    Part,
    Payload,
    Payloads,
    Ready,
    Written,
)
from .segments import LOOK_AHEAD, Segment, SegmentChunks, Source, chunks_of, readable
from .worker_messages import receive, receive_descriptors, send


def serve(connection: socket.socket, task: PackTask) -> None:
    """Pack the segments that the caller sends, until EOF. Errors are reported to the caller."""
    (descriptor,) = receive_descriptors(connection, 1)
    try:
        memory = memoryview(mmap.mmap(descriptor, 0))
        sources: dict[int, Source] = {
            number: resolve_name(builder)(data) for number, (builder, data) in task.sources.items()
        }
        for source in sources.values():
            # If this process may not read the source, the answer is `Failed`, and the caller packs everything itself.
            for begin, end in readable(source)[:1]:
                source.read_into(begin, memory[: min(1, end - begin)])
        send(connection, Ready())
        hand_over = _HandingOver(connection, memory, task.segment_bytes + LOOK_AHEAD)
        while (part := receive(connection, Part)) is not None:
            segment = Segment(*msgspec.structs.astuple(part))
            found = chunks_of(sources[part.number], segment, lambda length: memory[:length])
            send(connection, Cut(found.start, found.chunks))
            wanted = receive(connection, ChunksToCompress)
            if wanted is None:
                return
            hand_over(found, wanted)
    except ConnectionError:
        return  # the caller has exited
    except OSError as error:
        send(connection, Failed(errno=error.errno or 1))
    except BaseException as error:
        send(connection, Failed(error=record_of(error)))


class _HandingOver:
    """A compressor of chunks into the places of the memory after `begin`; a place is reused once the caller has written it."""

    def __init__(self, connection: socket.socket, memory: memoryview, begin: int) -> None:
        self._connection, self._memory = connection, memory
        self._start = _address(memory)
        self._begins = [begin + number * PLACE_BYTES for number in range(PLACES)]
        self._compressor, self._composer = Compressor(), Composer()
        self._handed = self._written = 0

    def __call__(self, segment: SegmentChunks, request: ChunksToCompress) -> None:
        payloads: list[Payload] = []
        gathered = used = 0
        for number, digest in enumerate(request.digests, 1):
            new, view, chunk = digest, segment.views[digest], None
            made = self._composer.compose(view, digest, request.offer)
            if made is not None:
                chunk = Chunk(digest, len(view), made.parts)
                new, view = made.digest, made.fresh
            codec, payload = self._compressor.compress(view)
            if codec == RAW and chunk is None:
                # An uncompressed payload is already in the shared memory.
                offset = _address(view) - self._start
            else:
                self._wait(PLACES - 1)
                offset = self._begins[self._handed % PLACES] + used
                self._memory[offset : offset + len(payload)] = payload
                used += len(payload)
            payloads.append(Payload(new, codec, len(view), offset, len(payload), chunk))
            gathered += len(payload)
            if gathered >= HANDED_BYTES or number == len(request.digests):
                send(self._connection, Payloads(payloads, last=number == len(request.digests)))
                self._handed += 1
                payloads, gathered, used = [], 0, 0
        # The segment's memory is about to be reused.
        self._wait(0)

    def _wait(self, unwritten: int) -> None:
        """Wait until at most `unwritten` of the payloads sent to the caller are not yet written."""
        while self._handed - self._written > unwritten:
            if receive(self._connection, Written) is None:
                raise ConnectionAbortedError
            self._written += 1


def _address(memory: memoryview) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))
