"""Edits of the sockets in CRIU's images, whose ports and names may be in use, e.g. by the kernel from which this one was branched.

CRIU restores listeners with SO_REUSEADDR and SO_REUSEPORT (criu/sk-inet.c) and removes a unix socket's file before it binds it
anew (criu/sk-unix.c). So a second copy of a snapshot would be restored without an error, and share ports with the first or take
over its names. This module finds such conflicts before the restore.
"""

from __future__ import annotations

import os
import re
import socket
import struct
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from ...errors import ThawFailed
from ...host import ended_connections
from ...model import SCRATCH
from ...ports import HeldPorts
from . import images as criu_images
from .images import Field

#: file_entry (images/fdinfo.proto).
_INET, _UNIX = 4, 16
#: inet_sk_entry (images/sk-inet.proto).
_FAMILY, _TYPE, _STATE, _SOURCE, _DESTINATION, _ADDRESS = 3, 4, 6, 7, 8, 11
#: unix_sk_entry (images/sk-unix.proto).
_UNIX_STATE, _UNIX_NAME = 4, 11
#: TCP_LISTEN of include/net/tcp_states.h; unix sockets use the same numbers.
_LISTEN = 10
_MAX_PORT = 65535
#: The name of the CUDA driver's abstract socket: NUL, then `cuda-uvmfd-<inode of the PID namespace>-<pid in it>`.
_CUDA_NAME = re.compile(rb"\0cuda-uvmfd-(\d+)-(\d+)")
#: Folders that are private to a kernel: sockets there do not conflict with others.
_PRIVATE = ("/dev/shm/", f"{SCRATCH}/")  # noqa: S108 - the kernel's own


@dataclass
class Moved:
    """The changed ports of the tree's listeners, old to new, without those that the caller had named."""

    ports: dict[int, int] = field(default_factory=dict)
    #: Sockets that reserve the new ports until the tree listens on them.
    held: list[HeldPorts] = field(default_factory=list)

    def release(self) -> None:
        """Release the new ports when the tree listens on them."""
        for ports in self.held:
            ports.release()


def move(files: Path, init_pid: int, ports: Mapping[int, int]) -> Moved:
    """Edit files.img so that its tree does not conflict with processes that use its ports now.

    `ports`: old to new, or to the same, for ports that clients outside know. Raises ThawFailed if one of them is in use. A
    listener on any other port that is in use gets a free one.
    """
    entries, listeners = _read(files)
    moved = Moved()
    # Ended connections of the saved tree occupy ports for a minute. All are removed in one pass, because reading the table is slow.
    ended_connections.remove({ports.get(port, port) for port, _, _ in listeners})
    for port, family, address in listeners:
        if port in moved.ports or not _is_taken(ports.get(port, port), family, address):
            continue
        if port in ports:
            raise ThawFailed(
                f"The kernel's own port {ports[port]} is taken by another program.",
                hint="End that program, then try again. The snapshot is untouched.",
                details=f"bind to {address} port {ports[port]}: address already in use",
            )
        free = HeldPorts.free(1)
        moved.held.append(free)
        [moved.ports[port]] = free.ports
    namespace = os.stat(f"/proc/{init_pid}/ns/pid").st_ino
    changes = {**ports, **moved.ports}
    edited = [_edited(entry, changes, namespace) for entry in entries]
    if edited != entries:
        criu_images.replace(files, edited)
    return moved


@criu_images.strict
def _read(files: Path) -> tuple[list[bytes], list[tuple[int, int, str]]]:
    """Return the messages of files.img, and port, address family and address of its TCP listeners."""
    entries = list(criu_images.messages(files))
    for entry in entries:
        _edited(entry, {}, 0)  # can be read as a whole
    listeners = list(_listeners(entries))
    if any(not 0 <= port <= _MAX_PORT for port, _, _ in listeners):
        raise ValueError("a port is none")
    return entries, listeners


def _inner(entry: bytes, kind: int) -> Iterator[list[Field]]:
    for number, _, value in criu_images.fields(entry):
        if number == kind and isinstance(value, bytes):
            yield list(criu_images.fields(value))


def _listeners(entries: list[bytes]) -> Iterator[tuple[int, int, str]]:
    """Yield port, address family and address of every TCP listener."""
    for entry in entries:
        for parts in _inner(entry, _INET):
            values = {number: value for number, _, value in parts if isinstance(value, int)}
            if (values[_TYPE], values[_STATE]) == (socket.SOCK_STREAM, _LISTEN):
                words = [value for number, _, value in parts if number == _ADDRESS]
                family = values[_FAMILY]
                length = 1 if family == socket.AF_INET else 4
                address = struct.pack(f"={length}I", *words[:length])
                yield values[_SOURCE], family, socket.inet_ntop(family, address)


def _is_taken(port: int, family: int, address: str) -> bool:
    """Return whether the address is in use. The test binds without SO_REUSEPORT, which would allow it beside a restored listener."""
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
            probe.listen()
        except OSError:
            return True
    return False


@criu_images.strict
def listening_files(files: Path, *, private_shm: bool) -> list[str]:
    """Return the paths of listening unix sockets in files.img that are visible outside of the kernel, too."""
    private = _PRIVATE if private_shm else _PRIVATE[1:]
    found = []
    for entry in criu_images.messages(files):
        for parts in _inner(entry, _UNIX):
            state = next(value for number, _, value in parts if number == _UNIX_STATE)
            name = next(value for number, _, value in parts if number == _UNIX_NAME)
            if state == _LISTEN and isinstance(name, bytes) and name.startswith(b"/"):
                path = os.fsdecode(name.rstrip(b"\0"))
                if "\0" in path:
                    raise ValueError("the name of a socket continues after its end")
                # A path with ".." could lead anywhere, and no folder is made for it.
                if not path.startswith(private) and ".." not in path.split("/"):
                    found.append(path)
    return found


def names_in_use() -> set[str]:
    """Return the paths of unix sockets that are bound in this network namespace (man proc_net_unix)."""
    found = set()
    with suppress(OSError):
        for line in Path("/proc/net/unix").read_text(errors="surrogateescape").splitlines()[1:]:
            columns = line.split(maxsplit=7)
            if len(columns) == 8:
                found.add(columns[7])
    return found


def _edited(entry: bytes, ports: Mapping[int, int], namespace: int) -> bytes:
    parts = list(criu_images.fields(entry))
    for index, (number, wire, value) in enumerate(parts):
        if number == _INET and isinstance(value, bytes):
            inner = [_with_ports(part, ports) for part in criu_images.fields(value)]
            parts[index] = (number, wire, criu_images.encode(inner))
        elif number == _UNIX and isinstance(value, bytes):
            inner = [_with_namespace(part, namespace) for part in criu_images.fields(value)]
            parts[index] = (number, wire, criu_images.encode(inner))
    return criu_images.encode(parts)


def _with_ports(part: Field, ports: Mapping[int, int]) -> Field:
    number, wire, value = part
    # This applies to closed connections, too: CRIU binds their sockets to the former port.
    if number in {_SOURCE, _DESTINATION} and isinstance(value, int):
        return number, wire, ports.get(value, value)
    return part


def _with_namespace(part: Field, namespace: int) -> Field:
    """Replace the PID namespace in the name of the CUDA driver's socket: a resumed process is in another one."""
    number, wire, value = part
    if number == _UNIX_NAME and isinstance(value, bytes) and (match := _CUDA_NAME.match(value)):
        renamed = b"\0cuda-uvmfd-%d-%s" % (namespace, match[2])
        return number, wire, renamed + value[match.end() :]
    return part
