"""Edits of the unix sockets in CRIU's images, whose names may be in use, e.g. by the kernel from which this one was branched.

CRIU removes a unix socket's file before it binds it anew (criu/sk-unix.c). So a second copy of a snapshot would be restored without
an error, and take over the names of the first. A socket with an abstract name in use cannot be restored at all. This module finds
such conflicts before the restore.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import socket
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path

from ...errors import ThawFailed
from ...wire.manifest_records import SCRATCH
from . import images as criu_images
from .images import Field

#: file_entry (images/fdinfo.proto).
_UNIX = 16
#: unix_sk_entry (images/sk-unix.proto).
_TYPE, _STATE, _ROLE, _PEER, _NAME, _SHUT = 3, 4, 6, 8, 11, 12
_INODE, _OUTSIDE, _SHUT_BOTH, _VARINT = 2, 1, 3, 0
#: TCP_ESTABLISHED and TCP_LISTEN of include/net/tcp_states.h: unix sockets use the same numbers.
_ESTABLISHED, _LISTEN = 1, 10
#: The name of the CUDA driver's abstract socket: NUL, then `cuda-uvmfd-<inode of the PID namespace>-<pid in it>`.
_CUDA_NAME = re.compile(rb"\0cuda-uvmfd-(\d+)-(\d+)")
#: A name that Linux chose (man 7 unix, autobind).
_CHOSEN_NAME = re.compile(rb"\0[0-9a-f]{5}")
#: Folders that are private to a kernel: sockets there do not conflict with others.
_PRIVATE = ("/dev/shm/", f"{SCRATCH}/")  # noqa: S108 - the kernel's own


def rename(files: Path, init_pid: int) -> None:
    """Edit files.img so that names that Linux or the CUDA driver chose are free. Raises ThawFailed for another name in use."""
    namespace = os.stat(f"/proc/{init_pid}/ns/pid").st_ino
    entries, names = _read(files)
    edited = [_edited(entry, namespace, names) for entry in entries]
    if edited != entries:
        criu_images.replace(files, edited)


@criu_images.strict
def _read(files: Path) -> tuple[list[bytes], dict[bytes, bytes]]:
    """Return the messages of files.img, and new names for abstract unix sockets whose names are in use."""
    entries = list(criu_images.messages(files))
    for entry in entries:
        _edited(entry, 0, {})  # raises if the entry cannot be decoded completely
    return entries, _new_names(entries)


@criu_images.strict
def listening_files(files: Path, *, private_shm: bool) -> list[str]:
    """Return the paths of listening unix sockets in files.img that are visible outside of the kernel, too."""
    private = _PRIVATE if private_shm else _PRIVATE[1:]
    found = []
    for entry in criu_images.messages(files):
        for unix in criu_images.inner(entry, _UNIX):
            parts = list(criu_images.fields(unix))
            state = next(value for number, _, value in parts if number == _STATE)
            name = next(value for number, _, value in parts if number == _NAME)
            if state == _LISTEN and isinstance(name, bytes) and name.startswith(b"/"):
                path = os.fsdecode(name.rstrip(b"\0"))
                if "\0" in path:
                    raise ValueError("the name of a socket continues after its end")
                # A path with ".." could lead anywhere, and no folder is made for it.
                if not path.startswith(private) and ".." not in path.split("/"):
                    found.append(path)
    return found


@criu_images.strict
def close_outer(files: Path) -> None:
    """Edit files.img so that connections with sockets outside look like ones that the other side has closed.

    What was received and not read stays: CRIU restores such a socket as one end of a pair whose other end it closes.
    """
    entries, outside = [], set[int]()
    for entry in criu_images.messages(files):
        values = [criu_images.numbers(unix) for unix in criu_images.inner(entry, _UNIX)]
        found = {unix[_INODE] for unix in values if unix[_ROLE] & _OUTSIDE}
        outside |= found
        if not found:
            entries.append(entry)
    if outside:
        criu_images.replace(files, [_closed(entry, outside) for entry in entries])


def _closed(entry: bytes, peers: Collection[int]) -> bytes:
    def change(unix: bytes) -> bytes:
        if criu_images.numbers(unix)[_PEER] not in peers:
            return unix
        kept = [part for part in criu_images.fields(unix) if part[0] not in {_PEER, _SHUT}]
        return criu_images.encode([*kept, (_PEER, _VARINT, 0), (_SHUT, _VARINT, _SHUT_BOTH)])

    return criu_images.with_inner(entry, _UNIX, change)


def names_in_use() -> set[str]:
    """Return the names of bound unix sockets in this network namespace: paths, abstract ones with "@" (man proc_net_unix)."""
    found = set()
    with suppress(OSError):
        for line in Path("/proc/net/unix").read_text(errors="surrogateescape").splitlines()[1:]:
            columns = line.split(maxsplit=7)
            if len(columns) == 8:
                found.add(columns[7])
    return found


def _new_names(entries: list[bytes]) -> dict[bytes, bytes]:
    """Map abstract names that are in use to new names. Raises ThawFailed for a name that a program chose."""
    names: dict[bytes, bytes] = {}
    for entry in entries:
        for unix in criu_images.inner(entry, _UNIX):
            values = {number: value for number, _, value in criu_images.fields(unix)}
            name, kind = values[_NAME], values[_TYPE]
            is_connection = values[_STATE] == _ESTABLISHED and kind != socket.SOCK_DGRAM
            if not isinstance(name, bytes) or not isinstance(kind, int) or is_connection:
                continue
            if not re.match(rb"\0.", name, re.DOTALL) or name in names or _CUDA_NAME.match(name):
                continue
            if not _is_name_taken(name, kind):
                continue
            if not _CHOSEN_NAME.fullmatch(name):
                shown = os.fsdecode(name.replace(b"\0", b"@"))
                raise ThawFailed(
                    f"The name {shown} of a unix socket of the kernel is used by another program, or by the kernel that was saved.",
                    hint="End that program, then try again. The snapshot is untouched.",
                    details=f"bind to {shown}, type {kind}: address already in use",
                )
            names[name] = _free_name(kind, names)
    return names


def _is_name_taken(name: bytes, kind: int) -> bool:
    with socket.socket(socket.AF_UNIX, kind) as probe:
        try:
            probe.bind(name)
        except OSError as error:
            return error.errno == errno.EADDRINUSE
    return False


def _free_name(kind: int, names: Mapping[bytes, bytes]) -> bytes:
    """Return a name of the form that Linux chooses, which nobody uses."""
    while True:
        name = b"\0%05x" % secrets.randbelow(1 << 20)
        if name not in names.values() and not _is_name_taken(name, kind):
            return name


def _edited(entry: bytes, namespace: int, names: Mapping[bytes, bytes]) -> bytes:
    def change(unix: bytes) -> bytes:
        return criu_images.encode(
            [_with_name(part, namespace, names) for part in criu_images.fields(unix)]
        )

    return criu_images.with_inner(entry, _UNIX, change)


def _with_name(part: Field, namespace: int, names: Mapping[bytes, bytes]) -> Field:
    """Replace a name in use, and the PID namespace in that of the CUDA driver's socket: a resumed process is in another one."""
    number, wire, value = part
    if number == _NAME and isinstance(value, bytes):
        if match := _CUDA_NAME.match(value):
            renamed = b"\0cuda-uvmfd-%d-%s" % (namespace, match[2])
            return number, wire, renamed + value[match.end() :]
        return number, wire, names.get(value, value)
    return part
