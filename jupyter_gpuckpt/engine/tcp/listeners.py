"""The listening sockets of a tree that stands still: silenced, so that another process gets their ports, until they listen again.

A silenced socket stays what it is: the same file with its options and its places in epoll, of every process that has it. It is
bound, but no longer listens (man 2 shutdown), so that others may bind and listen to the same port with SO_REUSEADDR. Connections of
other programs are cut: their clients connect again, and find who listens there now. The processes must not run meanwhile, because
programs take a listener that accepts nothing for a defect (libzmq ends its process).
"""

from __future__ import annotations

import errno
import logging
import os
import socket
import struct
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from ...errors import FreezeFailed
from ...host import connections
from ...wire import decoding
from ...wire.manifest_records import SCRATCH
from ..criu import inet_images
from ..tree.duplicates import duplicate_socket
from ..tree.launch import pids
from ..tree.tree import Tree

logger = logging.getLogger(__name__)

#: The file with the silenced sockets, also for another daemon.
_JOURNAL = f"{SCRATCH}/silenced-listeners"
_FILES = "files.img"
#: TCP_LISTEN of include/net/tcp_states.h, and the place in struct tcp_info of the queue's length (`tcpi_sacked` of a listener).
_LISTEN, _STATE_AT, _BACKLOG_AT, _INFO_BYTES = 10, 0, 28, 104


class _Listener(msgspec.Struct, frozen=True):
    """A silenced socket: the descriptor by which a process has it, its inode, its address, and the length of its queue."""

    pid: int
    descriptor: int
    inode: int
    address: list[Any]
    backlog: int


def silence(tree: Tree) -> None:
    """Make the listeners of a tree that stands still give up their ports, until `listen_again`. Raises FreezeFailed; then all listen."""
    members = pids(tree)
    try:
        found = [_of(end) for end in connections.listeners(members)]
        _write(tree.inside(_JOURNAL), found)
        for listener in found:
            _shut(listener.pid, listener.descriptor)
        ports = {listener.address[1] for listener in found}
        for end in connections.survey(members).outer:
            if end.row.local.port in ports:
                with suppress(OSError):  # its other side has just ended it
                    _shut(end.pid, end.descriptor)
    except OSError as error:
        listen_again(tree, ())
        raise FreezeFailed(
            "The kernel's ports could not be given up.",
            hint="The details say why; please report them.",
            details=str(error),
        ) from error


def listen_again(tree: Tree, own_ports: Collection[int]) -> None:
    """Make the silenced listeners of a tree listen again; do nothing if there are none.

    Raises FreezeFailed if one of `own_ports` is in use; then all stay silenced. A listener on another port that is in use stays silenced.
    """
    journal = tree.inside(_JOURNAL)
    listening = list[_Listener]()
    for listener in sorted(_read(journal), key=lambda one: one.address[1] not in own_ports):
        try:
            _listen(listener)
        except OSError as error:
            port = listener.address[1]
            if port not in own_ports:
                logger.warning("port %d of a kernel is in use now: %s", port, error)
                continue
            for one in listening:
                _shut(one.pid, one.descriptor)
            raise FreezeFailed(
                f"The kernel's own port {port} is taken by another program.",
                hint="End that program, then try again.",
                details=str(error),
            ) from error
        listening.append(listener)
    with suppress(OSError):
        journal.unlink(missing_ok=True)


def correct_images(tree: Tree, images: Path) -> None:
    """Make silenced listeners of the tree listen in CRIU's images of it."""
    found = {one.inode: (one.address[1], one.backlog) for one in _read(tree.inside(_JOURNAL))}
    if found:
        inet_images.listen(images / _FILES, found)


def _of(end: connections.End) -> _Listener:
    with duplicate_socket(end.pid, end.descriptor) as one:
        return _Listener(
            end.pid,
            end.descriptor,
            os.fstat(one.fileno()).st_ino,
            list(one.getsockname()),
            struct.unpack_from("=I", _info(one), _BACKLOG_AT)[0],
        )


def _shut(pid: int, descriptor: int) -> None:
    with duplicate_socket(pid, descriptor) as one:
        one.shutdown(socket.SHUT_RDWR)


def _listen(listener: _Listener) -> None:
    with duplicate_socket(listener.pid, listener.descriptor) as one:
        if os.fstat(one.fileno()).st_ino != listener.inode or _info(one)[_STATE_AT] == _LISTEN:
            return
        try:
            one.bind(
                tuple(listener.address)
            )  # Linux unbinds a socket whose port it had chosen itself
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
        one.listen(listener.backlog)


def _info(listener: socket.socket) -> bytes:
    return listener.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)


def _write(journal: Path, found: list[_Listener]) -> None:
    new = journal.with_suffix(".new")
    new.write_bytes(msgspec.json.encode(found))
    new.replace(journal)


def _read(journal: Path) -> list[_Listener]:
    try:
        return decoding.from_json(journal.read_bytes(), list[_Listener])
    except (OSError, msgspec.DecodeError):
        return []
