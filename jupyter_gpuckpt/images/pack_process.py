"""What a process of `pack_processes` does: it reads segments, cuts them and compresses the chunks that the store lacks."""

from __future__ import annotations

import ctypes
import mmap
import socket
from pkgutil import resolve_name

from ..errors import record_of
from ..store.codecs import RAW
from .compression import Compressor
from .pack_processes import (
    HANDED_BYTES,
    PLACE_BYTES,
    PLACES,
    Cut,
    Failed,
    PackTask,
    Part,
    Payload,
    Payloads,
    Ready,
    Wanted,
    Written,
)
from .segments import LOOK_AHEAD, Found, Segment, Source, chunks_of
from .worker_processes import descriptors_from, hear, say


def serve(connection: socket.socket, task: PackTask) -> None:
    """Do segments as long as there are any; what goes wrong is said."""
    (descriptor,) = descriptors_from(connection, 1)
    try:
        memory = memoryview(mmap.mmap(descriptor, 0))
        sources: dict[int, Source] = {
            number: resolve_name(builder)(data) for number, (builder, data) in task.sources.items()
        }
        for source in sources.values():
            # Where this is refused to us, whoever asks does everything itself.
            source.read_into(0, memory[: min(1, source.length)])
        say(connection, Ready())
        hand_over = _HandingOver(connection, memory, task.segment_bytes + LOOK_AHEAD)
        while (part := hear(connection, Part)) is not None:
            segment = Segment(part.number, part.start, part.end)
            found = chunks_of(sources[part.number], segment, lambda length: memory[:length])
            say(connection, Cut(found.start, found.chunks))
            wanted = hear(connection, Wanted)
            if wanted is None:
                return
            hand_over(found, wanted.digests)
    except ConnectionError:
        return  # nobody listens any more
    except OSError as error:
        say(connection, Failed(errno=error.errno or 1))
    except BaseException as error:
        say(connection, Failed(error=record_of(error)))


class _HandingOver:
    """Compresses chunks into the places of the memory behind `begin`, each of which is used again when it was written."""

    def __init__(self, connection: socket.socket, memory: memoryview, begin: int) -> None:
        self._connection, self._memory = connection, memory
        self._start = _address(memory)
        self._begins = [begin + number * PLACE_BYTES for number in range(PLACES)]
        self._compressor = Compressor()
        self._handed = self._written = 0

    def __call__(self, found: Found, digests: list[bytes]) -> None:
        payloads: list[Payload] = []
        gathered = used = 0
        for number, digest in enumerate(digests, 1):
            view = found.views[digest]
            codec, payload = self._compressor.compress(view)
            if codec == RAW:
                # It lies in the memory already.
                offset = _address(view) - self._start
            else:
                self._wait(PLACES - 1)
                offset = self._begins[self._handed % PLACES] + used
                self._memory[offset : offset + len(payload)] = payload
                used += len(payload)
            payloads.append(Payload(digest, codec, len(view), offset, len(payload)))
            gathered += len(payload)
            if gathered >= HANDED_BYTES or number == len(digests):
                say(self._connection, Payloads(payloads, last=number == len(digests)))
                self._handed += 1
                payloads, gathered, used = [], 0, 0
        # The segment's memory is used again.
        self._wait(0)

    def _wait(self, unwritten: int) -> None:
        """Until no more than so many of those that were handed over are not written yet."""
        while self._handed - self._written > unwritten:
            if hear(self._connection, Written) is None:
                raise ConnectionAbortedError
            self._written += 1


def _address(memory: memoryview) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))
