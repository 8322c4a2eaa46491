"""Files that a kernel had open and that are gone when it is to be resumed.

CRIU opens every file by its path and gives up when one is missing. A file that the kernel was writing (a log, a database such as
IPython's history) is made anew, empty: what was in it is lost anyway, and the kernel's memory is worth more. One that it was
reading is named, so that somebody can put it back.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from ..errors import HostIncompatible
from . import criu_images

_SHOWN = 5
#: Made anew with the namespaces, or none of ours to make.
_OTHERS = ("/proc/", "/sys/", "/dev/", "/run/gpuckpt/")


def put_in_place(images: Path, inside: Callable[[str], Path]) -> list[str]:
    """Make what is missing and was open for writing; returns the paths of what was made.

    `inside` gives a path as the kernel will see it. Raises HostIncompatible naming files that were only read; then nothing was
    made.
    """
    renamed = criu_images.remapped(images)
    missing: dict[str, int] = {}
    only_read: set[str] = set()
    for file in criu_images.regular_files(images):
        path = "/" + file.path.lstrip("/")
        if file.file_id in renamed or file.build_id or path.startswith(_OTHERS):
            continue
        if not os.path.lexists(inside(path)):
            missing[path] = stat.S_IMODE(file.mode)
            if not stat.S_ISREG(file.mode) or file.flags & os.O_ACCMODE == os.O_RDONLY:
                only_read.add(path)
    if only_read:
        shown = ", ".join(sorted(only_read)[:_SHOWN])
        raise HostIncompatible(
            f"Files that the kernel has open are gone: {shown}.",
            hint="Put them back, then try again. The snapshot is untouched.",
            details="\n".join(sorted(only_read)),
        )
    made = []
    try:
        for path, mode in missing.items():
            target = inside(path)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.touch(exist_ok=True)
            made.append(path)
            target.chmod(mode)  # CRIU compares it
            owner = target.parent.stat()
            os.chown(target, owner.st_uid, owner.st_gid)
    except OSError:
        remove(made, inside)
        raise
    return made


def remove(made: list[str], inside: Callable[[str], Path]) -> None:
    """Undo `put_in_place`: remove what is still empty."""
    for path in made:
        with suppress(OSError):
            if inside(path).stat().st_size == 0:
                inside(path).unlink()
