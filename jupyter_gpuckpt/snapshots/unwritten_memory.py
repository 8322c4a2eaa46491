"""The memory of a kernel that a save takes from the predecessor's chunks, because the kernel has not written it since.

Covers: the choice of the chunks, and their check. Does not cover: who knows what was written (`engine.memory.tracked_kernels`).

A wrong page would be a silent error in a user's data. So some chunks of every save are read and compared all the same, chosen at
random. After one difference the kernel's writes are never tracked again, and the save reads everything.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ..engine.freeze import Frozen
from ..engine.memory.reader import ProcessMemory
from ..engine.memory.tracked_kernels import SavedMemory, TrackedKernel, saved_memory
from ..images.chunking import MAX_PAGES, PAGE, is_zero
from ..images.composing import Predecessor
from ..images.partial import Layout, usable
from ..images.segments import Kept, Source
from ..store.codecs import digest_of
from ..store.local import LocalStore
from ..store.manifests import digests_of
from ..wire.manifest_records import Chunk

logger = logging.getLogger(__name__)


class UnwrittenMemory:
    """A source of the memory of a process of which only `ranges` are read; an implementation of `images.segments.PartialSource`."""

    def __init__(
        self, memory: ProcessMemory, kept: Sequence[Kept], ranges: Sequence[tuple[int, int]]
    ) -> None:
        self.name, self.length, self.kept, self.ranges = memory.name, memory.length, kept, ranges
        self.read_into, self.share = memory.read_into, memory.share


class _Known(NamedTuple):
    """A chunk of the predecessor, and the offset at which the memory has it now."""

    offset: int
    chunk: Chunk


def sources(
    state: Frozen,
    predecessor: Predecessor | None,
    store: LocalStore,
    checked_share: float,
    writes: TrackedKernel | None,
) -> list[Source]:
    """Return the sources of all memory. The predecessor's chunks must be held in the store until the snapshot is published.

    `checked_share`: the share of the chunks taken from it that is read and compared.
    """
    memory, unwritten = state.tracked, state.unwritten
    found: list[Source] = list(state.memory)
    if memory is None or unwritten is None or predecessor is None or writes is None:
        return found
    saved = unwritten.saved
    stream = predecessor.stream(saved.stream)
    if (
        stream is None
        or (saved.snapshot_id, saved.stream) != (predecessor.snapshot_id, memory.name)
        or sum(extent.length for extent in saved.extents) != stream.length
    ):
        return found
    layout = Layout(stream, store.missing(digests_of([stream])))
    use = usable(layout, unwritten.origin(memory.extents), PAGE)
    if use is None:
        return found
    if wrong := _difference(memory, use.kept, checked_share):
        logger.error(
            "Memory that seemed unwritten has changed: %d bytes at %d of %s. The kernel is saved as a whole from now on.",
            wrong.chunk.length,
            wrong.offset,
            memory.name,
        )
        writes.switch_off("its memory had changed unseen")
        return found
    partial = UnwrittenMemory(memory, use.kept, use.ranges)
    return [partial if source is memory else source for source in found]


def saved_in(snapshot_id: str, state: Frozen, writes: TrackedKernel | None) -> SavedMemory | None:
    """Return the record of a saved kernel's memory, as its ghost has it, for its next save; None if that cannot use it."""
    if state.tracked is None or writes is None or not writes.is_on:
        return None
    try:
        return saved_memory(snapshot_id, state.tracked)
    except OSError as error:
        logger.info("The next save will read all memory: %s", error)
        return None


def _difference(memory: ProcessMemory, kept: Sequence[Kept], share: float) -> _Known | None:
    """Return one of the chunks that the memory has not at their places, if some of them, chosen at random, show one."""
    return next((known for known in _chosen(kept, share) if not _has(memory, known)), None)


def _has(memory: ProcessMemory, known: _Known) -> bool:
    length, digest = known.chunk.length, known.chunk.digest
    # Zeros may be longer than any chunk that is stored.
    buffer = memoryview(bytearray(length if digest else min(length, MAX_PAGES * PAGE)))
    if digest:
        memory.read_into(known.offset, buffer)
        return digest_of(buffer) == digest
    for done in range(0, length, len(buffer)):
        piece = buffer[: length - done]
        memory.read_into(known.offset + done, piece)
        if not is_zero(piece):
            return False
    return True


def _chosen(kept: Sequence[Kept], share: float) -> Iterator[_Known]:
    chance = random.SystemRandom().random
    for one in kept:
        at = one.start
        for chunk in one.chunks:
            if chance() < share:
                yield _Known(at, chunk)
            at += chunk.length
