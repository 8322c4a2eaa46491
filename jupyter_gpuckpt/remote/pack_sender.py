"""The making and sending of the packs of an upload: threads make one pack after the other together, while other threads send.

All makers work on the same pack, so the first pack is ready early. If each made a pack of its own, all would be ready at the same
later time. After an error no other pack is begun.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from ..errors import StoreUnavailable
from ..linux.fresh_memory import Scratch
from ..store.packs import Entry
from . import remote_packs
from .buckets import Bucket
from .pack_refs import PackRef
from .remote_packs import NewPack, OtherLengthError, RemoteChunk, RemotePack
from .retries import Retries
from .sealing import Seal

#: How many packs are sent at a time.
WRITERS = 8
#: The most packs in memory: those that are sent, one that waits, and one that is being made.
MAX_PACKS = WRITERS + 2

#: A function that returns the codec, the payload and the raw length of the chunk with a digest.
Read = Callable[[bytes], tuple[int, bytes | memoryview, int]]


class Pace:
    """A limiter of the average upload rate to `rate` bytes per second; 0 means no limit. Thread-safe."""

    def __init__(self, rate: int) -> None:
        self._rate = rate
        self._lock = threading.Lock()
        self._free_at = 0.0

    def wait(self, count_bytes: int, retries: Retries) -> None:
        """Wait until `count_bytes` may be sent. The next call waits for the time that these bytes take at this rate."""
        if not self._rate:
            return
        with self._lock:
            now = time.monotonic()
            begins = max(now, self._free_at)
            self._free_at = begins + count_bytes / self._rate
        retries.wait(begins - now)


class _Task:
    """A pack that several threads make and one sends. `parts`: how many parts of it are still to be made."""

    def __init__(
        self, number: int, chunks: Sequence[Entry], pack: NewPack, memory: Scratch
    ) -> None:
        self.number, self.chunks, self.pack, self.memory = number, chunks, pack, memory
        self.parts = 0


class PackSender:
    """A sender of new packs to a bucket, for one upload.

    `remote_ids`: the remote id of each digest. `on_sent` is called with each pack that the remote has confirmed, in one thread at a time.
    """

    def __init__(
        self,
        bucket: Bucket,
        seal: Seal,
        pace: Pace,
        read: Read,
        remote_ids: dict[bytes, bytes],
        on_sent: Callable[[RemotePack, Sequence[Entry]], None],
    ) -> None:
        self._bucket, self._seal, self._pace = bucket, seal, pace
        self._read, self._remote_ids, self._on_sent = read, remote_ids, on_sent
        self._makers = remote_packs.workers()
        self._lock, self._telling = threading.Lock(), threading.Lock()
        #: The errors, with the numbers of their packs.
        self._errors: list[tuple[int, BaseException]] = []
        #: The packs that were sent, by their numbers.
        self._sent: dict[int, PackRef] = {}
        #: Memory for packs. It is reused, because fresh memory would take longer than the encryption.
        self._free: queue.SimpleQueue[Scratch] = queue.SimpleQueue()
        #: How many packs are not begun.
        self._unbegun = 0

    def send(self, groups: Sequence[Sequence[Entry]]) -> list[PackRef]:
        """Make a pack of each group of chunks, send it, and return their references. Raises the error of the first that failed."""
        self._unbegun = len(groups)
        for _ in range(min(MAX_PACKS, len(groups))):
            self._free.put(Scratch())
        with (
            ThreadPoolExecutor(WRITERS, "send") as sending,
            ThreadPoolExecutor(self._makers, "make") as making,
        ):
            for number, chunks in enumerate(groups):
                memory = self._free.get()
                if self._errors:
                    break
                self._unbegun -= 1
                pack = NewPack(self._seal, [chunk.stored_length for chunk in chunks], memory)
                task = _Task(number, chunks, pack, memory)
                size = -(-len(chunks) // self._makers)
                starts = range(0, len(chunks), size)
                task.parts = len(starts)
                for start in starts:
                    making.submit(self._make, task, start, start + size, sending)
                del pack, task, memory  # whoever sends the pack frees its memory
        if self._errors:
            raise min(self._errors, key=lambda error: error[0])[1]
        return [self._sent[number] for number in range(len(groups))]

    def _make(self, task: _Task, start: int, end: int, sending: ThreadPoolExecutor) -> None:
        """Make a part of a pack; with the last part, have the pack sent."""
        if not self._errors:
            try:
                task.pack.fill(start, map(self._chunk, task.chunks[start:end]))
            except OtherLengthError as error:
                late = StoreUnavailable(
                    "A chunk was replaced during the upload.", hint="Try again."
                )
                late.__cause__ = error
                self._errors.append((task.number, late))
            except BaseException as error:  # raised by `send`
                self._errors.append((task.number, error))
        with self._lock:
            task.parts -= 1
            is_made = not task.parts
        if is_made:
            try:
                sending.submit(self._send, task)
            except (
                BaseException
            ) as error:  # no thread could be started; raised by `send`, which waits for the memory
                self._errors.append((task.number, error))
                self._free.put(task.memory)

    def _chunk(self, chunk: Entry) -> RemoteChunk:
        return RemoteChunk(self._remote_ids[chunk.digest], *self._read(chunk.digest))

    def _send(self, task: _Task) -> None:
        try:
            if not self._errors:
                pack = task.pack.finish()
                self._pace.wait(pack.ref.length, self._bucket.retries)
                if not self._errors:  # another pack may have failed meanwhile
                    self._sent[task.number] = self._send_pack(pack, task.chunks)
                del pack
        except BaseException as error:  # raised by `send`
            self._errors.append((task.number, error))
        memory = task.memory
        del task.pack, task.memory
        if self._unbegun > self._free.qsize():
            self._free.put(memory)

    def _send_pack(self, pack: RemotePack, chunks: Sequence[Entry]) -> PackRef:
        if not self._bucket.create(pack.ref.name, pack.data):
            raise StoreUnavailable(
                f"Remote {self._bucket.name} already has another object named {pack.ref.name}.",
                hint="Try again.",
            )
        with self._telling:
            self._on_sent(pack, chunks)
        return pack.ref
