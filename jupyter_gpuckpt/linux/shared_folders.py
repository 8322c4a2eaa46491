"""The check whether file locks in a folder work for every process that can write there, on this host and on others."""

from __future__ import annotations

import os
from pathlib import Path

#: File systems that only this host's operating system writes, so that every process with access sees its locks.
#: On other file systems, such as NFS, locks depend on versions and mount options of both sides, or do not exist.
_OF_THIS_HOST = frozenset(
    {"bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "jfs", "overlay", "ramfs", "tmpfs", "xfs"}
    | {"zfs"}
)


def locks_reach_all(folder: Path, mounts: str = "/proc/self/mountinfo") -> bool:
    """Return whether every process that can write to a folder sees locks (flock) of files there."""
    return file_system_of(folder, mounts) in _OF_THIS_HOST


def file_system_of(folder: Path, mounts: str = "/proc/self/mountinfo") -> str:
    """Return the file system type of a folder that may not exist yet; empty if it is unknown (man 5 proc)."""
    path, found, longest = os.path.realpath(folder), "", -1
    try:
        lines = Path(mounts).read_text().splitlines()
    except OSError:
        return ""
    for line in lines:
        before, _, after = line.partition(" - ")
        words, kind = before.split(), after.split()
        if len(words) < 5 or not kind:
            continue
        at = words[4].encode().decode("unicode_escape")
        is_above = path == at or path.startswith(at.rstrip("/") + "/")
        # The last of several mounts at one place is the visible one.
        if is_above and len(at) >= longest:
            found, longest = kind[0], len(at)
    return found
