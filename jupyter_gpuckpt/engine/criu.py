"""Running CRIU: the skeleton dump, the plain dump and the words of a restore.

The skeleton dump is `criu dump --lazy-pages` with a page server that wants no pages: CRIU writes every image but the private
memory and leaves the tasks stopped; the memory is then ours to read. CRIU runs in the kernel's own PID and mount namespaces,
so that neither is part of the images; it stays outside the time namespace, so that the kernel's clock is.
"""

from __future__ import annotations

import os
import resource
import select
import socket
import struct
import time
from pathlib import Path

from ..errors import FreezeFailed
from ..host import commands, processes
from ..model import SCRATCH
from ..progress import Progress
from . import criu_log
from .settings import EngineSettings
from .tree import Tree

#: Where images lie inside the kernel's mount namespace when they are on the scratch tmpfs.
IMAGES = f"{SCRATCH}/images"
NOTIFY = f"{SCRATCH}/notify"

#: Right for every dump and restore; the reasons are in ARCHITECTURE.md, "CRIU's options".
_COMMON = [
    "-v1",
    "--tcp-close",
    "--file-locks",
    "--link-remap",
    "--manage-cgroups=ignore",
]
#: page server protocol (criu/page-xfer.c): PS_IOV_CLOSE, answered by a status word.
_CLOSE = struct.pack("<IIQQQ", 0x1023, 0, 0, 0, 0)
#: Nothing of a skeleton depends on the size of the memory but some pipes; a plain dump writes at the disk's pace.
_DUMP_SECONDS = 600.0
_LOOK_SECONDS = 0.002


def _inside(tree: Tree) -> list[str]:
    """The words that put a program into the kernel's PID and mount namespaces, with all descriptors that the limit allows.

    CRIU keeps a pipe per megabyte of private memory and raises its own soft limit only with CAP_SYS_RESOURCE.
    """
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return [
        *("prlimit", f"--nofile={hard}:{hard}"),
        *("nsenter", f"--target={tree.init_pid}", "--pid", "--mount", "--"),
    ]


def _dump_words(settings: EngineSettings, tree: Tree, images: str, ghost_limit: int) -> list[str]:
    return [
        *_inside(tree),
        *(str(settings.criu), "dump", "--tree", str(tree.keeper_nspid)),
        *("--images-dir", images, "--log-file", "dump.log", "--leave-stopped"),
        *("--ghost-limit", str(ghost_limit)),
        *_COMMON,
    ]


class _FirstStop:
    """When the kernel was first seen standing still: CRIU looks around for a while before it stops anything."""

    def __init__(self, tree: Tree) -> None:
        self._pid = tree.kernel_pid
        self.seen: float | None = None

    def look(self) -> None:
        """Look now."""
        if self.seen is None and processes.state(self._pid) in ("t", "T"):
            self.seen = time.monotonic()


def dump_skeleton(
    settings: EngineSettings, tree: Tree, directory: str, ghost_limit: int, progress: Progress
) -> float:
    """Write all images but the private pages into `directory` (a path inside); every task is stopped (state T) on return.

    Returns the time.monotonic() at which the kernel came to stand still. Raises FreezeFailed with CRIU's reason; then CRIU
    has let the tasks go on, unless it was killed.
    """
    stop = _FirstStop(tree)
    ours, theirs = socket.socketpair()
    ready, tell = os.pipe()
    try:
        process = commands.spawn(
            [
                *_dump_words(settings, tree, directory, ghost_limit),
                *("--lazy-pages", "--ps-socket", str(theirs.fileno()), "--status-fd", str(tell)),
            ],
            pass_fds=[theirs.fileno(), tell],
        )
        theirs.close()
        os.close(tell)
        tell = -1
        try:
            deadline = time.monotonic() + _DUMP_SECONDS
            # The byte says that the images are there and the page server listens; EOF that CRIU failed before.
            while not select.select([ready], [], [], _LOOK_SECONDS)[0]:
                stop.look()
                progress.check()
                if time.monotonic() > deadline:
                    break
            if os.read(ready, 1):
                ours.sendall(_CLOSE)
                ours.recv(4)
            status = commands.wait(process, max(1.0, deadline - time.monotonic()))
        finally:
            commands.stop(process)
    finally:
        for fd in (ready, tell):
            if fd >= 0:
                os.close(fd)
        ours.close()
        theirs.close()
    if status != 0:
        raise _failure(tree.inside(directory) / "dump.log", status)
    return stop.seen or time.monotonic()


def dump_plain(
    settings: EngineSettings, tree: Tree, directory: str, ghost_limit: int, progress: Progress
) -> float:
    """Write all images, memory too, into `directory` (a path inside); otherwise as `dump_skeleton`."""
    stop = _FirstStop(tree)
    process = commands.spawn(_dump_words(settings, tree, directory, ghost_limit))
    try:
        deadline = time.monotonic() + _DUMP_SECONDS
        while (status := commands.wait(process, _LOOK_SECONDS)) is None:
            stop.look()
            progress.check()
            if time.monotonic() > deadline:
                break
    finally:
        commands.stop(process)
    if status != 0:
        raise _failure(tree.inside(directory) / "dump.log", status)
    return stop.seen or time.monotonic()


def _failure(log: Path, status: int | None) -> FreezeFailed:
    ended = "took too long" if status is None else f"ended with status {status}"
    found = criu_log.diagnose(log, fallback=f"CRIU could not save the kernel (it {ended}).")
    return FreezeFailed(found.cause, hint=found.hint, details=found.details)


def restore_words(settings: EngineSettings, directory: str, *, lazy: bool) -> list[str]:
    """The command that init runs to restore `directory` as a child of its own, every task stopped.

    `lazy`: private pages come from our filler (`page_filler.py`), which the action script waits for.
    """
    return [
        *(str(settings.criu), "restore", "--images-dir", directory, "--work-dir", directory),
        *("--log-file", "restore.log", "--restore-detached", "--restore-sibling"),
        *("--leave-stopped", *_COMMON),
        *(("--lazy-pages", "--action-script", NOTIFY) if lazy else ()),
    ]
