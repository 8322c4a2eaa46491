"""The command lines of `criu dump` and `criu restore`; the reasons for each option are in docs/decisions/saves.md."""

from __future__ import annotations

import socket
from collections.abc import Iterator

from ...wire.manifest_records import SCRATCH
from ..settings import EngineSettings
from ..tree import user_namespaces
from ..tree.tree import Tree
from . import action_script, cache, watched_files

#: Where images lie inside the kernel's mount namespace when they are on the scratch tmpfs.
IMAGES = f"{SCRATCH}/images"

#: Options of every dump and restore.
_COMMON = [
    "-v1",
    "--tcp-close",
    "--file-locks",
    "--link-remap",
    "--manage-cgroups=ignore",
]
#: Options for tasks in a user namespace of their own, in which CRIU has every capability.
_UNPRIVILEGED = ["--unprivileged"]
#: CRIU keeps inherited descriptors in a socket's queue (criu/fdstore.c): the bytes per descriptor, and the number of CRIU's own.
_KEPT_BYTES, _OTHERS_KEPT = 800, 100
_SO_SNDBUFFORCE, _LARGEST_BUFFER = 32, (1 << 30) - 1


def dump_command(settings: EngineSettings, tree: Tree, images: str, ghost_limit: int) -> list[str]:
    """Return the command line that dumps a tree into `images`, a path inside its namespaces."""
    return [
        *(str(settings.init), "enter", str(tree.init_pid)),
        *(str(settings.criu), "dump", "--tree", str(tree.keeper_nspid)),
        *(_unprivileged(tree) if user_namespaces.has_own(tree.init_pid) else ()),
        *("--images-dir", images, "--log-file", "dump.log", "--leave-stopped"),
        *("--ghost-limit", str(ghost_limit), "--action-script", action_script.PROGRAM),
        # Without it a connection that is not accepted yet fails the dump, and a kernel's clients open connections at any time.
        "--skip-in-flight",
        *_COMMON,
    ]


def _unprivileged(tree: Tree) -> Iterator[str]:
    yield from _UNPRIVILEGED
    for path in watched_files.paths(tree):
        yield from ("--irmap-scan-path", path)


def restore_command(settings: EngineSettings, directory: str, *, unprivileged: bool) -> list[str]:
    """Return the command line by which init restores the images in `directory` as its child, with every task stopped."""
    return [
        *(
            "env",
            f"LD_PRELOAD={settings.criu_preload}",
            f"{cache.VARIABLE}={cache.DIRECTORY}",
        ),
        *(str(settings.criu), "restore", "--images-dir", directory, "--work-dir", directory),
        *("--log-file", "restore.log", "--restore-detached", "--restore-sibling"),
        *("--leave-stopped", "--action-script", action_script.PROGRAM, *_COMMON),
        # A file that was put back has often other permissions, and they matter to an open only.
        "--skip-file-rwx-check",
        *(_UNPRIVILEGED if unprivileged else ()),
    ]


def max_inherited_descriptors() -> int:
    """Return how many descriptors a restore may inherit: for an unprivileged CRIU the queue that holds them is short."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as queue:
        try:
            queue.setsockopt(socket.SOL_SOCKET, _SO_SNDBUFFORCE, _LARGEST_BUFFER)
        except PermissionError:
            queue.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _LARGEST_BUFFER)
        length = queue.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
    return max(0, length // _KEPT_BYTES - _OTHERS_KEPT)
