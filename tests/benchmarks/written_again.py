"""Files written again as plain files: how fast a disk takes the bytes of a store, without the work of making them."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

from .room import GB

#: How many files are written at the same time: as many as a save fills (store/writer.py).
WRITERS = 4
_PIECE_BYTES = 4 << 20
#: What stays free on the disk.
_SPARE_BYTES = 2 * GB


def seconds(files: Sequence[Path]) -> float:
    """Write copies of files beside them, `WRITERS` at a time, and sync each to the disk; return how long that takes.

    The copies are removed, which is not counted; where the disk has no room for all of them, some are before the next are written. The
    files should be in the page cache.
    """
    taken = 0.0
    os.sync()
    for group in _groups(files):
        with (
            TemporaryDirectory(prefix="again-", dir=files[0].parent) as folder,
            ThreadPoolExecutor(WRITERS) as pool,
        ):
            targets = [Path(folder) / str(number) for number in range(len(group))]
            began = time.monotonic()
            for _ in pool.map(_write, group, targets):
                pass
            taken += time.monotonic() - began
    return taken


def _groups(files: Sequence[Path]) -> Iterator[Sequence[Path]]:
    """Yield files of which copies fit on the disk at the same time."""
    room = shutil.disk_usage(files[0].parent).free - _SPARE_BYTES
    group, length = list[Path](), 0
    for file in files:
        size = file.stat().st_size
        if group and length + size > room:
            yield group
            group, length = [], 0
        group.append(file)
        length += size
    yield group


def _write(source: Path, target: Path) -> None:
    buffer = memoryview(bytearray(_PIECE_BYTES))
    with source.open("rb", buffering=0) as old, target.open("xb", buffering=0) as new:
        while count := old.readinto(buffer):
            piece = buffer[:count]
            while piece:
                piece = piece[new.write(piece) :]
        os.fsync(new.fileno())
