"""The memory and disk space that a resume needs, compared with those of this machine."""

from __future__ import annotations

import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

from ..engine.gpu.ferry import ferry_windows
from ..engine.memory import page_plan, reservations
from ..engine.memory.page_plan import PagePlan
from ..host import processes
from ..host.overcommit import overcommit
from ..store.read_only import ReadableStore
from ..wire.manifest_records import Manifest
from .stored_images import MEMORY, PROCESSES, write_images


def memory_shortage(manifest: Manifest, store: ReadableStore) -> str:
    """Return a sentence about the memory that a resume lacks; empty if there is enough. GPU memory is not considered."""
    needed = max_memory_bytes(manifest)
    free = processes.mem_available()
    if needed > free:
        # Memory that forked processes share is in the streams of all of them.
        needed -= sum(plan.shared_bytes for plan in _plans(manifest, store))
    if needed > free:
        # GPU memory that is filled window by window needs less.
        needed -= ferry_windows.spared(ferry_windows.ferry_bytes(manifest))
    if needed <= free:
        return ""
    return f"{needed >> 20} MB of memory are needed, {free >> 20} MB are free."


def max_memory_bytes(manifest: Manifest) -> int:
    """Return an upper bound of the memory that a resume needs: shared memory of forked processes counts for each of them."""
    return _streams_bytes(manifest, "pages/", "gpu")


def disk_shortage(manifest: Manifest, store: ReadableStore, spill_dir: Path) -> str:
    """Return a sentence about the space that a resume lacks in `spill_dir`, for CRIU's files; empty if there is enough.

    Memory that forked processes share is written once for each of them.
    """
    place = next(path for path in (spill_dir, *spill_dir.parents) if path.exists())
    free = shutil.disk_usage(place).free
    if manifest.method == "skeleton":
        needed = _streams_bytes(manifest, "pages/")
        if needed > free:
            needed = sum(plan.criu_bytes for plan in _plans(manifest, store))
    else:
        needed = _streams_bytes(manifest, "image/")
    if needed <= free:
        return ""
    return (
        f"{needed >> 20} MB are needed on the disk for what CRIU puts into the kernel's memory,"
        f" {free >> 20} MB are free in {place}."
    )


def reservation_shortage(manifest: Manifest, store: ReadableStore, *, running: bool = False) -> str:
    """Return a sentence about the memory that a resume cannot reserve; empty if it can. `running`: the kernel still runs here."""
    limits = overcommit()
    if limits.free_bytes is None:
        return ""
    with TemporaryDirectory() as directory:
        images = Path(directory)
        write_images(manifest, store, images, {*MEMORY, *PROCESSES})
        return reservations.shortage(images, limits, running=running)


def _streams_bytes(manifest: Manifest, *kinds: str) -> int:
    return sum(stream.length for stream in manifest.streams if stream.name.startswith(kinds))


def _plans(manifest: Manifest, store: ReadableStore) -> list[PagePlan]:
    """Return the page plans of processes; none for a plain dump, whose pages CRIU fills."""
    if manifest.method != "skeleton":
        return []
    with TemporaryDirectory() as directory:
        images = Path(directory)
        write_images(manifest, store, images, MEMORY)
        page_plan.align_areas(manifest, images)
        return page_plan.plan(manifest, images)
