"""The records of the kernels that editors have started, and the rules by which a kernel belongs to a notebook.

relay/sessions/<id>/session.json     the record
relay/sessions/<id>/kernel/journal   the kernel's messages; the kernel alone writes this folder
relay/sessions/<id>/position         the number of the last message that was passed on
relay/sessions/<id>/requests         requests without a reply
"""

from __future__ import annotations

import mmap
import os
import shutil
import struct
from collections.abc import Iterable
from pathlib import Path

import msgspec

from ..linux.disk_reserve import with_room
from ..wire import decoding
from .notebook_files import identity_of

_POSITION = struct.Struct("<Q")


class KeptRecord(msgspec.Struct):
    """The record of a kernel. `left_at`: when its editor has gone (seconds since the epoch); 0: it has one."""

    session_id: str
    kernel_id: str
    #: A digest of the kernelspec, and the name in it.
    spec_digest: str
    kernel_name: str
    #: The folder in which the editor started it, its notebook, and the identity of that file; empty: not known.
    folder: str
    path: str = ""
    identity: list[int] = []
    left_at: float = 0.0
    #: That a restart has replaced it: it comes back by a user's request only.
    is_before_restart: bool = False
    #: When it ends because its client has shut it down (seconds since the epoch); 0: it does not.
    ends_at: float = 0.0
    has_agent: bool = False
    #: Why it runs without the engine, so that it cannot be suspended; empty: it does not.
    plain_reason: str = ""
    #: The name of its machine: machines may share a home.
    host: str = ""
    #: The numbers of the first and last message that no editor has shown; 0: there are none, or the last is not known yet.
    missed_first: int = 0
    missed_last: int = 0

    @property
    def name(self) -> str:
        """Return its name in lists."""
        return Path(self.path).name if self.path else self.kernel_name


class KeptFolder:
    """The folder of a kernel."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.journal = folder / "kernel" / "journal"
        self.requests = folder / "requests"

    def make(self) -> None:
        """Create it."""
        with_room(
            self.folder,
            lambda: self.journal.parent.mkdir(mode=0o700, parents=True, exist_ok=True),
        )

    def write(self, record: KeptRecord) -> None:
        """Replace the record: a reader sees the old or the new one."""
        new = self.folder / "session.new"
        with_room(new, lambda: new.write_bytes(msgspec.json.encode(record)))
        new.replace(self.folder / "session.json")

    def remove(self) -> None:
        """Remove everything about the kernel."""
        shutil.rmtree(self.folder, ignore_errors=True)


class Position:
    """A number in a file that is written in one piece, also if this process is killed: a store of eight bytes in mapped memory."""

    def __init__(self, path: Path) -> None:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(fd, _POSITION.size)
            self._map = mmap.mmap(fd, _POSITION.size)
        finally:
            os.close(fd)

    @property
    def number(self) -> int:
        """Return the number."""
        return int(_POSITION.unpack_from(self._map)[0])

    def set(self, number: int) -> None:
        """Replace the number."""
        _POSITION.pack_into(self._map, 0, number)

    def close(self) -> None:
        """Unmap the file."""
        self._map.close()


def records_below(folder: Path) -> list[KeptRecord]:
    """Return the records of all kernels; a damaged one is left out."""
    found = []
    for path in sorted(folder.glob("*/session.json")):
        try:
            found.append(decoding.from_json(path.read_bytes(), KeptRecord))
        except (OSError, msgspec.DecodeError):
            continue
    return found


def belonging(records: Iterable[KeptRecord], path: str) -> KeptRecord | None:
    """Return the kernel of the notebook that is at `path` now; None if there is none for certain.

    Its file was the same when an editor had it last, and it had this name, or has lost the name that it had. A copy and another file that
    took the name are other notebooks; for those that were replaced by their program it cannot be told, so `%gpuckpt resume` decides.
    """
    identity = identity_of(path)
    for record in sorted(records, key=lambda one: one.left_at or float("inf"), reverse=True):
        if record.is_before_restart or record.ends_at or not record.path:
            continue
        if not identity and not record.identity and record.path == path:
            return record  # a notebook that was never written
        if not identity or record.identity != identity:
            continue
        if record.path == path or identity_of(record.path) != identity:
            return record
    return None


def surplus(records: Iterable[KeptRecord], most: int, days: float, now: float) -> list[KeptRecord]:
    """Return the kernels to end because more are kept than allowed, or for longer."""
    left = sorted(
        (one for one in records if one.left_at and not one.ends_at),
        key=lambda one: (bool(one.path), one.left_at),
    )
    old = [one for one in left if now - one.left_at > days * 86400]
    others = [one for one in left if one not in old]
    return old + others[: max(0, len(others) - most)]
