"""Edits of owners and credentials in CRIU's images, for a kernel that is resumed in a user namespace of its own.

See also: `tree/user_namespaces.py`, which decides who needs one and with which ids.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from ...wire.manifest_records import SCRATCH
from ..tree.user_namespaces import Ids
from . import images as criu_images
from .images import Field

#: Fields of core_entry (images/core.proto) and of its parts: thread_core and creds (images/creds.proto).
_THREAD_CORE, _CREDS = 5, 10
_CAPABILITIES = frozenset({9, 10, 11, 19})  # inheritable, permitted, effective, ambient
_SECUREBITS, _GROUPS = 13, 14
#: uid, euid, suid and fsuid; gid, egid, sgid and fsgid.
_UIDS, _GIDS = frozenset({1, 3, 5, 7}), frozenset({2, 4, 6, 8})
#: SECBIT_NOROOT and its lock (linux/securebits.h): uid 0 gains no capability by an exec.
_NO_ROOT = 3
_VARINT = 0
#: The fields of uid and gid in memfd_inode_entry, ghost_file_entry, tty_info_entry and file_perms_entry.
_MEMFD_IDS, _GHOST_IDS, _TTY_IDS, _PERMS_IDS = (2, 3), (1, 2), (14, 15), (2, 3)
#: file_entry (images/fdinfo.proto), reg_file_entry and unix_sk_entry.
_REG, _UNIX, _REG_ID, _REG_NAME, _UNIX_PERMS = 3, 16, 1, 6, 13
#: The number of characters of a deleted file's name that its new name keeps.
_SHOWN = 60


@criu_images.strict
def mend(images: Path, ids: Ids, former: Ids) -> None:
    """Replace owners by `ids`, which exist in the namespace, and `former` ids of tasks; remove all capabilities of the tasks.

    CRIU would set any group or owner that differs from its own, and Linux refuses that in the namespace.
    """
    groups = _groups(ids)
    for path in images.glob("core-*.img"):
        _edit(path, lambda core: _core(core, ids, former, groups))
    _edit(images / "memfd.img", lambda inode: _owned(inode, ids, _MEMFD_IDS))
    _edit(images / "tty-info.img", _without_owner)
    for path in images.glob("ghost-file-*.img"):
        criu_images.edit_first(path, lambda ghost: _owned(ghost, ids, _GHOST_IDS))
    ghosts = criu_images.ghosts(images)
    _edit(images / "files.img", lambda file: _file(file, ids, ghosts))


def _edit(path: Path, change: Callable[[bytes], bytes]) -> None:
    if path.exists():
        criu_images.replace(path, [change(message) for message in criu_images.messages(path)])


def _owned(message: bytes, ids: Ids, numbers: tuple[int, int]) -> bytes:
    """Return the message of a nameless file with the kernel's user as owner, because the namespace has no other user."""
    values = dict(zip(numbers, ids, strict=True))
    parts: list[Field] = [
        (n, wire, values.get(n, value)) for n, wire, value in criu_images.fields(message)
    ]
    return criu_images.encode(parts)


def _file(entry: bytes, ids: Ids, ghosts: Mapping[int, int]) -> bytes:
    """Return an entry that can be restored: a socket with the kernel's owner, a deleted file in a writable folder."""
    entry = criu_images.with_inner(entry, _REG, lambda file: _reachable(file, ghosts))
    return criu_images.with_inner(
        entry,
        _UNIX,
        lambda sock: criu_images.with_inner(
            sock, _UNIX_PERMS, lambda perms: _owned(perms, ids, _PERMS_IDS)
        ),
    )


def _reachable(file: bytes, ghosts: Mapping[int, int]) -> bytes:
    """Return a deleted file with a name in a folder that is writable for the daemon.

    CRIU makes the file under that name, for all processes that had it open, and removes the name again.
    """
    parts = list(criu_images.fields(file))
    name = next(
        (value for n, _, value in parts if n == _REG_NAME and isinstance(value, bytes)), b""
    )
    number = next((value for n, _, value in parts if n == _REG_ID and isinstance(value, int)), 0)
    folder, base = os.path.split(os.path.join(b"/", name))
    if (
        number not in ghosts
        or name.startswith(b"/dev/shm/")
        or os.access(folder, os.W_OK | os.X_OK)
    ):
        return file
    moved = os.fsencode(f"{SCRATCH}/gone-{ghosts[number]:x}-") + base[:_SHOWN]
    return criu_images.encode(
        [(n, wire, moved if n == _REG_NAME else value) for n, wire, value in parts]
    )


def _without_owner(tty: bytes) -> bytes:
    """Return a terminal without an owner, so that CRIU keeps the owner that Linux sets."""
    return criu_images.encode([part for part in criu_images.fields(tty) if part[0] not in _TTY_IDS])


def _groups(ids: Ids) -> list[int]:
    """Return the daemon's supplementary groups as they are seen in the namespace, in their order."""
    unmapped = int(Path("/proc/sys/kernel/overflowgid").read_text())
    return [ids.gid if group == os.getegid() else unmapped for group in os.getgroups()]


def _core(message: bytes, ids: Ids, former: Ids, groups: list[int]) -> bytes:
    def changed(creds: bytes) -> bytes:
        return _powerless(creds, ids, former, groups)

    def thread(core: bytes) -> bytes:
        return criu_images.with_inner(core, _CREDS, changed)

    return criu_images.with_inner(message, _THREAD_CORE, thread)


def _powerless(creds: bytes, ids: Ids, former: Ids, groups: list[int]) -> bytes:
    parts: list[Field] = []
    for number, wire, value in criu_images.fields(creds):
        if number in _CAPABILITIES:
            parts.append((number, wire, 0))
        elif number == _SECUREBITS and isinstance(value, int):
            parts.append((number, wire, value | _NO_ROOT))
        elif number in _UIDS and value == former.uid:
            parts.append((number, wire, ids.uid))
        elif number in _GIDS and value == former.gid:
            parts.append((number, wire, ids.gid))
        elif number != _GROUPS:
            parts.append((number, wire, value))
    return criu_images.encode([*parts, *((_GROUPS, _VARINT, group) for group in groups)])
