"""The runs of `criu dump`: the skeleton dump and the plain dump.

The skeleton dump is `criu dump --lazy-pages` with a page server that requests no pages: CRIU writes every image but the private
memory and leaves the tasks stopped, and we read the memory. CRIU runs inside the kernel's PID and mount namespaces, so that it does
not save those, and outside the time namespace, so that it saves the kernel's clock.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from types import MappingProxyType
from typing import Self

from ...errors import FreezeFailed
from ...host import commands, processes, seccomp
from ..settings import EngineSettings
from ..tree import user_namespaces
from ..tree.launch import pids
from ..tree.strangers import end_strangers
from ..tree.tree import Tree
from . import (
    action_script,
    cache,
    command_lines,
    deleted_files,
    hidden_pages,
    log_causes,
    unix_images,
)

#: The page server protocol's PS_IOV_CLOSE (criu/page-xfer.c), which the server answers with a status number.
_CLOSE = struct.pack("<IIQQQ", 0x1023, 0, 0, 0, 0)
_LOOK_MILLISECONDS = 250
#: The state of a connected socket in Linux's table (man proc_net_unix).
_CONNECTED = "03"
#: How long a killed CRIU may take to end.
_END_SECONDS = 5.0


class _CameLateError(Exception):
    """A client connected between CRIU's start and the standstill."""


def dump_skeleton(
    settings: EngineSettings,
    tree: Tree,
    directory: str,
    ghost_limit: int,
    halt: Callable[[], None],
    own_sockets: Collection[str] = (),
) -> None:
    """Write all images but the private pages into `directory` (a path inside); every task is stopped (state T) on return.

    `halt` is called once, at the last moment before CRIU looks at the tasks; it must stop them all (state T), and may raise.
    `own_sockets`: the names of the listening unix sockets whose clients connect again by themselves. Raises FreezeFailed with CRIU's
    reason, or what `halt` raised. The tasks stay stopped in either case; if CRIU was killed in the middle they are in the state in which
    it left them.
    """

    def attempt(halt: Callable[[], None], more: Sequence[str]) -> None:
        _dump_skeleton(settings, tree, directory, ghost_limit, halt, more)

    _dump(tree, tree.inside(directory), own_sockets, halt, attempt)


def _dump_skeleton(
    settings: EngineSettings,
    tree: Tree,
    directory: str,
    ghost_limit: int,
    halt: Callable[[], None],
    more: Sequence[str],
) -> None:
    ours, theirs = socket.socketpair()
    ready, tell = os.pipe()
    with ExitStack() as stack:
        stack.callback(os.close, ready)
        stack.enter_context(ours)
        with theirs, open(tell, "wb", buffering=0):
            options = [
                "--lazy-pages",
                "--ps-socket",
                str(theirs.fileno()),
                "--status-fd",
                str(tell),
                *more,
            ]
            hiding = {hidden_pages.VARIABLE: hidden_pages.LIST}
            run = _Run(
                settings,
                tree,
                directory,
                ghost_limit,
                options,
                [theirs.fileno(), tell],
                hiding,
            )
        stack.enter_context(run)

        def close_page_server() -> None:
            # A byte means that the images are complete and the page server listens; EOF means that CRIU has failed.
            if os.read(ready, 1):
                # A connection error means that CRIU was killed; its exit status is the error then.
                with suppress(ConnectionError):
                    ours.sendall(_CLOSE)

        run.supervise(halt, {ready: close_page_server})


def dump_plain(
    settings: EngineSettings,
    tree: Tree,
    directory: str,
    ghost_limit: int,
    halt: Callable[[], None],
    own_sockets: Collection[str] = (),
) -> None:
    """Write all images, memory included, into `directory` (a path inside); otherwise like `dump_skeleton`."""

    def attempt(halt: Callable[[], None], more: Sequence[str]) -> None:
        with _Run(settings, tree, directory, ghost_limit, more) as run:
            run.supervise(halt, {})

    _dump(tree, tree.inside(directory), own_sockets, halt, attempt)


def _dump(
    tree: Tree,
    images: Path,
    own_sockets: Collection[str],
    halt: Callable[[], None],
    attempt: Callable[[Callable[[], None], Sequence[str]], None],
) -> None:
    """Dump the tree by `attempt`, which gets a function that stops the tasks, and more options for CRIU.

    CRIU refuses a connection to a socket outside of the tree unless its command line names the socket (`--external`). The clients of
    the kernel's own unix sockets, which are those of Jupyter's transport `ipc`, connect again by themselves, as over TCP. So the
    connections are named, and the images are edited: the kernel finds each as one that its client has closed, after the messages that
    the kernel had not read yet.

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


class _Run:
    """One run of `criu dump`. CRIU is killed only when it makes no progress, because it traces tasks."""

    def __init__(
        self,
        settings: EngineSettings,
        tree: Tree,
        directory: str,
        ghost_limit: int,
        more: Sequence[str] = (),
        descriptors: Sequence[int] = (),
        environment: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._settings, self._tree, self._scratch = settings, tree, tree.scratch
        self._unprivileged = user_namespaces.has_own(tree.init_pid)
        if self._unprivileged:
            cache.bring(settings, tree.scratch)
        self._log = tree.inside(directory) / "dump.log"
        self._stall_seconds = settings.stall_seconds
        self._errors = commands.ErrorOutput()
        try:
            self._server = action_script.listen(tree.inside(action_script.SOCKET))
        except BaseException:
            self._errors.close()
            raise
        try:
            argv = [*command_lines.dump_command(settings, tree, directory, ghost_limit), *more]
            preload = {
                "LD_PRELOAD": str(settings.criu_preload),
                cache.VARIABLE: cache.DIRECTORY,
                deleted_files.VARIABLE: deleted_files.LIST,
                seccomp.VARIABLE: str(seccomp.filters(tree.init_pid)),
            }
            self._process = commands.spawn(
                argv,
                stderr=self._errors.descriptor,
                pass_fds=descriptors,
                env={**commands.environment(), **preload, **environment},
            )
        except commands.CommandFailed as error:
            self._release()
            raise FreezeFailed(
                "CRIU could not be started.",
                hint="Run `jupyter gpuckpt doctor`.",
                details=str(error),
            ) from error
        except BaseException:
            self._release()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        commands.stop(self._process)
        if self._unprivileged:
            cache.keep(self._settings, self._scratch)
        self._release()

    def _release(self) -> None:
        self._server.close()
        self._errors.close()

    def supervise(self, halt: Callable[[], None], answers: dict[int, Callable[[], None]]) -> None:
        """Wait for CRIU's end. Call each of `answers` once, when its descriptor becomes readable."""
        error: BaseException | None = None
        asked = False
        with commands.watched(self._process) as ended:
            poll = select.poll()
            for descriptor in (ended, self._server.fileno(), *answers):
                poll.register(descriptor, select.POLLIN)
            ticks, since = 0, time.monotonic()
            while True:
                found = [descriptor for descriptor, _ in poll.poll(_LOOK_MILLISECONDS)]
                for descriptor in found:
                    if descriptor in answers:
                        poll.unregister(descriptor)
                        answers[descriptor]()
                if self._server.fileno() in found:
                    asked, error = True, self._halt(halt)
                if ended in found:
                    break
                now = time.monotonic()
                if found or (used := processes.processor_ticks(self._process.pid)) != ticks:
                    ticks, since = (ticks if found else used), now
                elif now - since > self._stall_seconds:
                    break
        stalled, obstacles = ended not in found, list[str]()
        if stalled:
            # CRIU first, then the program that entered the namespaces: its parent, which reaps it.
            obstacles = end_strangers(self._tree, _END_SECONDS, self._process.pid)
        status = commands.stop(self._process)
        if error is not None:
            raise error
        if status != 0 or not asked:
            raise self._failure(status, obstacles, stalled=stalled)

    def _halt(self, halt: Callable[[], None]) -> BaseException | None:
        """Call `halt` before CRIU touches a task. If `halt` raises, CRIU gives up; return the error."""
        with self._server.accept()[0] as connection:
            try:
                halt()
            except BaseException as error:
                return error
            with suppress(OSError):  # CRIU was killed; its exit status says so
                action_script.let_continue(connection)
            return None

    def _failure(self, status: int, obstacles: list[str], *, stalled: bool) -> FreezeFailed:
        if obstacles:
            return FreezeFailed(
                f"A file system of which the kernel has a file open did not answer CRIU: {'; '.join(obstacles)}. The connection to its"
                " server was ended, because otherwise the kernel would stand still for ever.",
                hint="The kernel runs on. Unmount that file system, and mount it again when its server works.",
                details=log_causes.diagnose(self._log, fallback="CRIU made no progress").details,
            )
        ended = "made no progress and was given up" if stalled else commands.ending(status)
        found = log_causes.diagnose(
            self._log,
            errors=self._errors.text(),
            fallback=f"CRIU could not save the kernel: it {ended}.",
        )
        return FreezeFailed(found.cause, hint=found.hint, details=found.details)
