"""The checks of what a fetch has read: chunks are decrypted, unpacked and compared with their digests.

Threads of this process do it, unless the caller of the fetch has processes for it (`remote/check_client.py`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, NamedTuple, Protocol, Self

from ..linux.fresh_memory import ThreadScratch
from ..store import packs
from ..store.codecs import CodecError, UnknownCodecError, digest_of_stored
from ..store.writer import Record
from . import remote_packs
from .buckets import Bucket
from .pack_refs import PackRef
from .remote_packs import Rows
from .sealing import HEADER_BYTES, Seal, cipher, invalid

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

#: The most bytes of one read, unless a chunk is longer.
SPAN_BYTES = 8 << 20
#: The largest gap between chunks that is read with them and discarded.
GAP_BYTES = 256 << 10
#: How many packs are opened at a time.
_READERS = 8


class OpenPack:
    """A pack with its rows and with the bytes of its own key, which no text about this object contains."""

    def __init__(self, ref: PackRef, secret: bytes, rows: Rows) -> None:
        self.ref, self.secret, self.rows = ref, secret, rows

    @property
    def key(self) -> AESGCM:
        """The pack's cipher."""
        return cipher(self.secret)


class Span(NamedTuple):
    """Chunks of a pack that one request reads; `rows` in the order of their offsets, `digests` of the same chunks."""

    pack: OpenPack
    rows: Rows
    digests: Sequence[bytes]
    start: int
    end: int


class Checkers(Protocol):
    """A checker of the chunks of a fetch. Thread-safe."""

    #: How many parts of spans other processes check while this one reads. The fetch has as many additional threads, which wait for them.
    elsewhere: int

    def __enter__(self) -> Self:
        """Return this object."""

    def __exit__(self, *_: object) -> None:
        """End what was started."""

    def checked(self, span: Span, data: memoryview) -> Generator[list[Record]]:
        """Check the chunks of a span and yield their records, a few at a time.

        `data`: the bytes from the span's start to its end. Records are valid until the next ones are asked for. The caller closes the
        generator. Raises RemoteObjectInvalid, FormatTooNew.
        """


class CheckingThreads:
    """The threads that read check chunks, a few at a time: a part of the work on each chunk holds the GIL."""

    elsewhere = 0

    def __init__(self) -> None:
        self._turns = threading.Semaphore(remote_packs.workers())
        self._decrypted = ThreadScratch()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def checked(self, span: Span, data: memoryview) -> Generator[list[Record]]:
        """Check the chunks of a span, all at once: see `Checkers`."""
        with self._turns:
            room = self._decrypted.memory.get(payload_bytes(span.rows))
            records = check(span, data, room)
        yield records


def open_packs(
    bucket: Bucket,
    seal: Seal,
    refs: Sequence[PackRef],
    reading: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> Iterator[OpenPack]:
    """Read the rows of packs, several at a time, and return an iterator of the packs in their order.

    Each pack is read inside a context of `reading`. The iterator raises RemoteObjectInvalid, RemoteObjectMissing, FormatTooNew.
    """

    def look(ref: PackRef) -> OpenPack:
        with reading():
            header = bytes(bucket.get_range(ref.name, 0, HEADER_BYTES))
            end = bytes(bucket.get_range(ref.name, ref.length - ref.index_length, ref.length))
            rows = remote_packs.rows_of(seal, ref, header, end)
            return OpenPack(ref, seal.secret_of(ref.name, header), rows)

    pool = ThreadPoolExecutor(_READERS, "look")
    found = pool.map(look, refs)

    def each() -> Iterator[OpenPack]:
        with pool:
            yield from found

    return each()


def spans(
    pack: OpenPack, rows: Rows, digests: Sequence[bytes], most_bytes: int = SPAN_BYTES
) -> Iterator[Span]:
    """Yield spans that together contain these chunks of a pack, which are in the order of their offsets.

    A span has at most `most_bytes`, unless one chunk is longer.
    """
    starts, ends = (some.tolist() for some in remote_packs.bounds(rows))
    first = 0
    for number in range(1, len(rows) + 1):
        if (
            number < len(rows)
            and starts[number] - ends[number - 1] <= GAP_BYTES
            and ends[number] - starts[first] <= most_bytes
        ):
            continue
        chunks = slice(first, number)
        yield Span(pack, rows[chunks], digests[chunks], starts[first], ends[number - 1])
        first = number


def payload_bytes(rows: Rows) -> int:
    """Return the length of the decrypted payloads of rows."""
    return int(rows["stored_length"].sum())


def check(span: Span, data: memoryview, room: memoryview) -> list[Record]:
    """Decrypt the chunks of a span from `data` into `room`, one after the other, and compare them with their digests.

    Raises RemoteObjectInvalid, FormatTooNew.
    """
    name = span.pack.ref.name
    chunks = remote_packs.open_chunks(name, span.pack.key, span.rows, data, span.start, room)
    records = []
    for digest, chunk in zip(span.digests, chunks, strict=True):
        try:
            intact = digest_of_stored(chunk.codec, chunk.payload, chunk.raw_length) == digest
        except UnknownCodecError as error:
            raise packs.chunk_too_new(digest, chunk.codec) from error
        except CodecError:
            intact = False
        if not intact:
            raise invalid(name, f"chunk {digest.hex()[:16]} does not match its digest")
        records.append(Record(digest, chunk.payload, chunk.raw_length, chunk.codec))
    return records
