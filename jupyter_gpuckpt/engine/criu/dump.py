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
from types import MappingProxyType
from typing import Self

from ...errors import FreezeFailed
from ...host import commands, processes, seccomp
from ..settings import EngineSettings
from ..tree import user_namespaces
from ..tree.strangers import end_strangers
from ..tree.tree import Tree
from . import (
    action_script,
    cache,
    command_lines,
    deleted_files,
    hidden_pages,
    log_causes,
    own_clients,
)

#: The page server protocol's PS_IOV_CLOSE (criu/page-xfer.c), which the server answers with a status number.
_CLOSE = struct.pack("<IIQQQ", 0x1023, 0, 0, 0, 0)
_LOOK_MILLISECONDS = 250
#: How long a killed CRIU may take to end.
_END_SECONDS = 5.0


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

    own_clients.dump(tree, tree.inside(directory), own_sockets, halt, attempt)


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

    own_clients.dump(tree, tree.inside(directory), own_sockets, halt, attempt)


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
