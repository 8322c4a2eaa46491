"""Connections of outside clients to a kernel's own unix sockets, which are those of Jupyter's transport `ipc`.

CRIU refuses a connection to a socket outside of the tree unless its command line names the socket (`--external`). These clients
connect again by themselves, as over TCP. So the connections are named, and the images are edited: the kernel finds each as one that
its client has closed, after the messages that the kernel had not read yet.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from ...host import processes
from ..tree.launch import pids
from ..tree.tree import Tree
from . import unix_images

#: The state of a connected socket in Linux's table (man proc_net_unix).
_CONNECTED = "03"


class _CameLateError(Exception):
    """A client connected between CRIU's start and the standstill."""


def dump(
    tree: Tree,
    images: Path,
    own_sockets: Collection[str],
    halt: Callable[[], None],
    attempt: Callable[[Callable[[], None], Sequence[str]], None],
) -> None:
    """Dump the tree by `attempt`, which gets a function that stops the tasks, and more options for CRIU.

    `own_sockets`: the names to which the kernel's own listening sockets are bound.
    """
    named = _connected(tree, own_sockets)

    def halt_and_look() -> None:
        halt()
        if _connected(tree, own_sockets) - named:
            raise _CameLateError

    try:
        attempt(halt_and_look, _options(named))
    except _CameLateError:
        # CRIU has not touched the tasks. They stand still, so no other client is accepted now.
        attempt(lambda: None, _options(_connected(tree, own_sockets)))
    if own_sockets:
        unix_images.close_outer(images / "files.img")


def _connected(tree: Tree, own_sockets: Collection[str]) -> set[str]:
    """Return the inodes of the tree's sockets that accepted a connection to one of its own listening sockets."""
    if not own_sockets:
        return set()
    accepted = {
        columns[6]
        for line in Path("/proc/net/unix").read_text(errors="surrogateescape").splitlines()[1:]
        if len(columns := line.split(maxsplit=7)) == 8
        and columns[5] == _CONNECTED
        and columns[7] in own_sockets
    }
    held = {link for pid in pids(tree) for link in processes.descriptors(pid).values()}
    return {inode for inode in accepted if f"socket:[{inode}]" in held}


def _options(inodes: Collection[str]) -> list[str]:
    return [word for inode in sorted(inodes) for word in ("--external", f"unix[{inode}]")]
