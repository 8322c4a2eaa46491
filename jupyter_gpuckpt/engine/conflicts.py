"""Avoidance of conflicts between a restored tree and running programs: ports, addresses, names of sockets, file locks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from ..wire.own_sockets import OwnSockets
from .criu import inet_images, lock_images, unix_images
from .criu.inet_images import Moved
from .placing import Placing
from .tree import socket_directories


def avoid(
    images: Path,
    ports: Mapping[int, int],
    init_pid: int,
    placing: Placing,
    inside: Callable[[str], Path],
    *,
    private_shm: bool,
    own_sockets: OwnSockets,
) -> Moved:
    """Edit the images so that the tree does not conflict with other programs; return the ports and addresses that changed.

    `ports`: of clients outside, old to new. `own_sockets`: the kernel's own, with the folder where its clients look for them. `inside`
    translates a path of the tree's. Raises ThawFailed for a conflict that cannot be avoided: a lock that another program holds, or a
    name or a port that others know.
    """
    files = images / "files.img"
    lock_images.require_free(images, inside("/"))
    unix_images.rename(files, init_pid)
    paths = unix_images.listening_files(files, private_shm=private_shm)
    for path in paths:
        # A temporary directory may have been removed meanwhile, or the snapshot comes from another machine.
        placing.make_folders(Path(path).parent, 0o700)
    own = set(paths) & set(own_sockets.names) if own_sockets.folder else set[str]()
    if own and own_sockets.folder != own_sockets.place:
        placing.make_folders(Path(own_sockets.folder), 0o700)
        socket_directories.replace(init_pid, own_sockets)
    if taken := (set(paths) - own) & unix_images.names_in_use():
        socket_directories.separate(init_pid, taken, inside)
    return inet_images.move(files, ports)
