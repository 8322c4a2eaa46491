"""The kernels of the relay: each is connected, suspended when its editor is gone for long, resumed when it is wanted, and ended."""

from __future__ import annotations

import logging
import platform
import time
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import zmq

from ..wire.manifest_records import Cause
from ..wire.states import KernelState
from .backend_import import BackendImport
from .editors import Editor
from .event_loop import EventLoop
from .file_changes import FileChanges
from .kept_records import KeptFolder, KeptRecord, records_below, surplus
from .kernel_infos import KernelInfos, digest_of
from .notebook_files import identity_of
from .relayed_kernels import RelayedKernel

if TYPE_CHECKING:
    from ..wire.protocol import Event

#: How long the editor of a killed relay is waited for: its program connects as soon as it notices.
RETURN_SECONDS = 15.0
#: A folder without a record is no other machine's new one after this time.
_UNFINISHED_SECONDS = 3600.0
#: The pause after a suspend that failed.
_SUSPEND_AGAIN_SECONDS = 300.0

_log = logging.getLogger(__name__)


class KernelTable:
    """The kernels by id."""

    def __init__(
        self, folder: Path, loop: EventLoop, context: zmq.Context[Any], backend: BackendImport
    ) -> None:
        self._sessions, self._loop, self._context = folder / "sessions", loop, context
        self._backend = backend
        self._changes = FileChanges()
        self._kernels: dict[str, RelayedKernel] = {}
        self._suspend_at: dict[str, float] = {}
        #: The kernels that any server may take over.
        self._offered: set[str] = set()
        self.infos = KernelInfos(folder / "info")
        loop.watch(self._changes.descriptor, self._changes.read)

    def __iter__(self) -> Iterator[RelayedKernel]:
        # Of a copy, because the caller may end kernels.
        return iter(list(self._kernels.values()))

    def __contains__(self, kernel_id: str) -> bool:
        return kernel_id in self._kernels

    def get(self, kernel_id: str) -> RelayedKernel | None:
        """Return a kernel; None if it is not in the table."""
        return self._kernels.get(kernel_id)

    def kept(self) -> list[RelayedKernel]:
        """Return the kernels that no editor has."""
        return [one for one in self if one.editor is None and not one.has_ended]

    def close(self) -> None:
        """Close all connections; the kernels stay."""
        for kernel in self:
            kernel.close()

    # ---- kernels of an earlier relay ---------------------------------------------------------------------------------

    def load(self) -> None:
        """Take this machine's kernels of an earlier relay into the table; remove what it has not removed of those that have ended."""
        for folder in self._sessions.glob("*"):
            is_old = time.time() - folder.stat().st_mtime > _UNFINISHED_SECONDS
            if is_old and not (folder / "session.json").exists():
                KeptFolder(folder).remove()
        for record in records_below(self._sessions):
            if record.host != platform.node():
                continue
            if record.plain_reason:
                KeptFolder(self._sessions / record.session_id).remove()
                continue  # it has ended with its relay
            kernel = self._add(record)
            if not record.left_at:
                self._loop.later(RETURN_SECONDS, partial(self._give_up_waiting, kernel))

    def find_all(self) -> None:
        """Connect to the kernels of an earlier relay that run, and forget those that have ended."""
        for kernel in self:
            if not kernel.is_changing and not kernel.is_reached:
                self._find(kernel)

    def _find(self, kernel: RelayedKernel) -> None:
        def found(state: KernelState | Exception | None) -> None:
            if isinstance(state, Exception):
                _log.warning("kernel %s was not found: %s", kernel.record.kernel_id, state)
            elif state is None:
                self.ended(kernel, 1)
            elif (
                state in {KernelState.RUNNING, KernelState.SAVING}
                or kernel.editor
                or kernel.requests
            ):
                self.wake(kernel)
            elif state is KernelState.SUSPENDED:
                self._offer(kernel)

        self.find(kernel, found)

    def find(
        self, kernel: RelayedKernel, then: Callable[[KernelState | Exception | None], None]
    ) -> None:
        """Call `then` with the kernel's state, or None if it has ended or a Jupyter server has it."""
        self._loop.in_thread(lambda: self._backend().state_of(kernel.record.kernel_id), then)

    def _give_up_waiting(self, kernel: RelayedKernel) -> None:
        if kernel.editor is None and not kernel.has_ended and not kernel.record.left_at:
            kernel.give_up_waiting()
            self.describe(kernel)

    # ---- new kernels -------------------------------------------------------------------------------------------------

    def made(self, editor: Editor, kernel_id: str = "") -> RelayedKernel:
        """Take a kernel for an editor into the table, under a new id or that of one that a server has left."""
        start = editor.start
        return self._add(
            KeptRecord(
                session_id=uuid.uuid4().hex[:12],
                kernel_id=kernel_id or str(uuid.uuid4()),
                spec_digest=digest_of(start["kernelspec"]),
                kernel_name=str(start["kernelspec"].get("display_name", "")),
                folder=start["folder"],
                host=platform.node(),
                path=editor.path,
                identity=identity_of(editor.path) if editor.path else [],
            )
        )

    def _add(self, record: KeptRecord) -> RelayedKernel:
        folder = KeptFolder(self._sessions / record.session_id)
        kernel = RelayedKernel(
            record, folder, wake=self.wake, later=self._loop.later, cut=self._cut
        )
        kernel.write()
        self._kernels[record.kernel_id] = kernel
        kernel.watch = self._changes.watch(folder.journal.parent, kernel.changed)
        return kernel

    def launch(self, kernel: RelayedKernel, start: dict[str, Any]) -> None:
        """Start the process of a new kernel."""
        kernel.is_changing = True

        def started(reached: Any) -> None:  # noqa: ANN401 - `Reached`, which is imported late
            kernel.is_changing = False
            if isinstance(reached, Exception):
                _log.warning("a kernel could not be started: %s", reached)
                _say(kernel, f"The kernel could not be started: {reached}")
                self.ended(kernel, 1)
                return
            kernel.reached(self._context, reached)
            self._watch_sockets(kernel)
            self.infos.learn(kernel.record.spec_digest, reached.info)
            if reached.plain_reason:
                _say(
                    kernel,
                    f"This kernel stays in memory when its editor closes, but cannot be suspended: {reached.plain_reason}",
                )
            elif kernel.editor is None:
                self.describe(kernel)

        self._loop.in_thread(
            lambda: self._backend().launch(kernel.record, kernel.folder, start), started
        )

    # ---- connection --------------------------------------------------------------------------------------------------

    def wake(self, kernel: RelayedKernel) -> None:
        """Bring a kernel back, or connect to one that runs; requests wait meanwhile."""
        if kernel.is_reached or kernel.is_changing or kernel.has_ended:
            return
        if kernel.record.plain_reason:
            return
        kernel.is_changing = True
        self._offered.discard(kernel.record.kernel_id)

        def reached(result: Any) -> None:  # noqa: ANN401 - `Reached`, which is imported late
            kernel.is_changing = False
            if kernel.has_ended:
                return
            if isinstance(result, Exception):
                self._not_reached(kernel, result)
                return
            kernel.reached(self._context, result)
            self._watch_sockets(kernel)
            self.describe(kernel)
            kernel.deliver()

        self._loop.in_thread(lambda: self._backend().reach(kernel.record, kernel.folder), reached)

    def _not_reached(self, kernel: RelayedKernel, error: Exception) -> None:
        _log.warning("kernel %s: %s", kernel.record.kernel_id, error)
        kernel.fail_requests(f"The kernel could not be brought back: {error}")
        if self._backend().is_lost(error):
            self.ended(kernel, 1)

    def _watch_sockets(self, kernel: RelayedKernel) -> None:
        if kernel.sockets is not None:
            for name, one in kernel.sockets.sockets.items():
                self._loop.watch(one, partial(kernel.sockets.receive, name, kernel.received))

    def _disconnect(self, kernel: RelayedKernel) -> None:
        if kernel.sockets is not None:
            for one in kernel.sockets.sockets.values():
                self._loop.forget(one)
        kernel.unreachable()

    def note(self, event: Event) -> None:
        """Apply an event of the daemon."""
        kernel = self.get(event.kernel.kernel_id if event.kernel else event.gone)
        if kernel is None:
            return
        if event.gone:
            self._loop.in_thread(
                lambda: self._backend().exit_code(kernel.exit_path),
                lambda code: self.ended(kernel, code if isinstance(code, int) else 1),
            )
        elif event.kernel is not None and not kernel.is_changing:
            if self._backend().is_absent(event.kernel):
                if kernel.is_reached:
                    self._disconnect(kernel)
                if kernel.requests:
                    self.wake(kernel)
                elif event.kernel.state is KernelState.SUSPENDED:
                    self._offer(kernel)  # a user has suspended it
            elif event.kernel.state is KernelState.RUNNING and not kernel.is_reached:
                self.wake(kernel)  # a user has resumed it

    def describe(self, kernel: RelayedKernel) -> None:
        """Tell the daemon the notebook of a kernel, which others list if no editor has it."""
        if not kernel.record.plain_reason and not kernel.has_ended:
            info = self.infos.get(kernel.record.spec_digest)
            self._loop.in_thread(lambda: self._backend().describe(kernel, info), log_failure)

    def interrupt(self, kernel: RelayedKernel) -> None:
        """Interrupt a kernel's cell."""
        self._loop.in_thread(lambda: self._backend().interrupt(kernel), log_failure)

    def _cut(self, kernel: RelayedKernel, received: int) -> None:
        connection = kernel.connection
        self._loop.in_thread(
            lambda: self._backend().cut_journal(connection, kernel.folder, received), log_failure
        )

    # ---- suspend -----------------------------------------------------------------------------------------------------

    def set_aside(self, kernel: RelayedKernel) -> None:
        """Keep the kernel of before a restart, until a user wants it."""
        for other in self:
            if (
                other is not kernel
                and other.record.is_before_restart
                and other.record.path == kernel.record.path
                and other.editor is None
                and other.record.folder == kernel.record.folder
            ):
                self.end(other)
        kernel.record.is_before_restart = True
        kernel.record.left_at = kernel.record.left_at or time.time()
        kernel.write()
        self._suspend(kernel, Cause.RESTART)

    def _suspend(self, kernel: RelayedKernel, cause: Cause) -> None:
        """Suspend a kernel that no editor has, when it is idle."""
        if not kernel.is_reached or kernel.is_changing or not kernel.is_idle:
            return
        if kernel.record.plain_reason:
            return
        kernel.is_changing = True

        def suspended(result: object) -> None:
            kernel.is_changing = False
            if isinstance(result, Exception):
                _log.warning("kernel %s was not suspended: %s", kernel.record.kernel_id, result)
                self._suspend_at[kernel.record.kernel_id] = (
                    time.monotonic() + _SUSPEND_AGAIN_SECONDS
                )
                return
            self._disconnect(kernel)
            if kernel.editor is not None or kernel.requests:
                self.wake(kernel)
            else:
                self._offer(kernel)

        self._loop.in_thread(
            lambda: self._backend().suspend(kernel.record, kernel.connection, cause), suspended
        )

    def _offer(self, kernel: RelayedKernel) -> None:
        """Let a Jupyter server take over a suspended kernel whose notebook no editor shows."""
        if kernel.record.kernel_id in self._offered:
            return
        self._offered.add(kernel.record.kernel_id)
        self._loop.in_thread(lambda: self._backend().offer(kernel), log_failure)

    # ---- the end -----------------------------------------------------------------------------------------------------

    def end(self, kernel: RelayedKernel, after_seconds: float = 0.0) -> None:
        """End a kernel; with `after_seconds` it can be brought back until then."""
        if kernel.record.plain_reason or not after_seconds:

            def ended(result: object) -> None:
                log_failure(result)
                kernel.folder.remove()  # the kernel wrote its journal until now

            self._loop.in_thread(lambda: self._backend().end(kernel), ended)
            self._forget(kernel)
            return
        kernel.record.ends_at = time.time() + after_seconds
        kernel.record.left_at = kernel.record.left_at or time.time()
        kernel.write()
        self._loop.in_thread(lambda: self._backend().end(kernel, after_seconds), log_failure)

    def undo_end(self, kernel: RelayedKernel) -> None:
        """Bring a kernel back whose client has shut it down."""
        kernel_id = kernel.record.kernel_id
        self._loop.in_thread(
            lambda: self._backend().undo_end(kernel_id), lambda _: self._run_on(kernel)
        )

    def _run_on(self, kernel: RelayedKernel) -> None:
        if kernel.is_reached:
            self.describe(kernel)
        else:
            self.wake(kernel)

    def ended(self, kernel: RelayedKernel, code: int) -> None:
        """Let the editor know that its kernel has ended."""
        if kernel.has_ended:
            return
        editor = kernel.editor
        kernel.deliver()
        self._forget(kernel)
        if editor is not None:
            editor.kernel = None
            editor.tell(exit=code)

    def _forget(self, kernel: RelayedKernel) -> None:
        kernel.has_ended = True
        self._kernels.pop(kernel.record.kernel_id, None)
        self._changes.forget(kernel.watch)
        self._disconnect(kernel)
        kernel.close()
        kernel.folder.remove()

    def keep_few(self) -> None:
        """End the kernels beyond those that the settings allow."""
        if (settings := self._backend.settings) is None:
            return
        records = [one.record for one in self.kept()]
        for record in surplus(records, settings.keep_sessions, settings.keep_days, time.time()):
            if (kernel := self.get(record.kernel_id)) is not None:
                _log.info(
                    "kernel %s (%s) is ended: too many are kept", record.kernel_id, record.name
                )
                self.end(kernel)

    def look_after(self) -> bool:
        """Suspend, end and forget kernels whose time has come; return whether one is in memory."""
        now = time.monotonic()
        self.keep_few()
        for kernel in self:
            if kernel.poll is not None and (code := kernel.poll()) is not None:
                self.ended(kernel, code)
            elif kernel.record.ends_at and time.time() > kernel.record.ends_at:
                self.end(kernel)
            elif kernel.editor is None and self._is_due(kernel, now):
                cause = Cause.RESTART if kernel.record.is_before_restart else Cause.IDLE
                self._suspend(kernel, cause)
        return any(one.is_reached or one.is_changing for one in self)

    def _is_due(self, kernel: RelayedKernel, now: float) -> bool:
        settings = self._backend.settings
        if settings is None or kernel.record.ends_at or not kernel.record.left_at:
            return False
        if now < self._suspend_at.get(kernel.record.kernel_id, 0.0):
            return False
        seconds = 0.0 if kernel.record.is_before_restart else settings.keep_minutes * 60
        left = time.time() - kernel.record.left_at
        return min(left, now - kernel.idle_since) >= seconds


def log_failure(result: object) -> None:
    """Log the exception of work in a thread."""
    if isinstance(result, Exception):
        _log.warning("a request failed: %s", result, exc_info=result)


def _say(kernel: RelayedKernel, text: str) -> None:
    if kernel.editor is not None:
        kernel.editor.notices.append(text)
        kernel.editor.tell(say=text)
