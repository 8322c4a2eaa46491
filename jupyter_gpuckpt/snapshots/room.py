"""The memory and the disk space that a resume takes, and whether this machine has them."""

from __future__ import annotations

import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

from ..engine.memory import page_plan
from ..engine.memory.page_plan import PagePlan
from ..host import processes
from ..model import Manifest
from ..store.local import LocalStore
from .stored_images import MEMORY, write_images


def memory_shortage(manifest: Manifest, store: LocalStore) -> str:
    """Say how much memory a resume lacks; an empty string if there is enough. Memory on GPUs is not looked at."""
    needed = most_memory_bytes(manifest)
    free = processes.mem_available()
    if needed > free:
        # What forked processes share is in the streams of all of them.
        needed -= sum(plan.shared_bytes for plan in _plans(manifest, store))
    if needed <= free:
        return ""
    return f"{needed >> 20} MB of memory are needed, {free >> 20} MB are free."


def most_memory_bytes(manifest: Manifest) -> int:
    """Return the memory that a resume takes, or more: what forked processes share counts for each of them."""
    return _streams_bytes(manifest, "pages/", "gpu")


def disk_shortage(manifest: Manifest, store: LocalStore, spill_dir: Path) -> str:
    """Say how much space a resume lacks in `spill_dir`, where it writes what CRIU reads; an empty string if there is enough.

    What forked processes share is written once for each of them.
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


def _streams_bytes(manifest: Manifest, *kinds: str) -> int:
    return sum(stream.length for stream in manifest.streams if stream.name.startswith(kinds))


def _plans(manifest: Manifest, store: LocalStore) -> list[PagePlan]:
    """Return who fills which pages; of a plain dump CRIU fills all."""
    if manifest.method != "skeleton":
        return []
    with TemporaryDirectory() as directory:
        images = Path(directory)
        write_images(manifest, store, images, MEMORY)
        return page_plan.plan(manifest, images)
