"""The kernels of this server as REST and events show them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from ...errors import DaemonSilent, record_of
from ...wire.states import KernelState
from ..messages.served_kernel import not_managed
from ..rest_records import KernelView, operation_view
from .adoption import STOPPED_WITH_THE_SERVER
from .notebook_sessions import sessions_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from jupyter_client.manager import KernelManager
    from jupyter_server.services.kernels.kernelmanager import AsyncMappingKernelManager
    from jupyter_server.services.sessions.sessionmanager import SessionManager

    from ...errors import GpuCkptError
    from ..messages.served_kernel import ServedKernel
    from .tracked_operations import TrackedOperations


class KernelList:
    """The kernels of one server.

    `served`: those under the engine; empty where kernels run elsewhere. `cells_resume`: whether a cell resumes a suspended kernel;
    `resume_busy`: as in `Adoption`. `restart_save_seconds`: how long a kernel's process is kept at a restart if it cannot be saved.
    `trouble`: returns why the daemon cannot be reached.
    """

    def __init__(
        self,
        kernels: AsyncMappingKernelManager,
        sessions: SessionManager,
        served: dict[str, ServedKernel],
        tracked: TrackedOperations | None,
        *,
        cells_resume: bool,
        resume_busy: bool = False,
        restart_save_seconds: float = 0.0,
        trouble: Callable[[], GpuCkptError | None] = lambda: None,
    ) -> None:
        self._kernels, self._sessions = kernels, sessions
        self._served, self._tracked, self._cells_resume = served, tracked, cells_resume
        self._resume_busy = resume_busy
        self._restart_save_seconds, self._trouble = restart_save_seconds, trouble

    def __contains__(self, kernel_id: str) -> bool:
        return kernel_id in self._kernels

    def ids(self) -> list[str]:
        """Return the ids of all kernels."""
        return list(self._kernels.list_kernel_ids())

    def view(self, kernel_id: str) -> KernelView:
        """Return a kernel as pages see it."""
        manager = self._kernels.get_kernel(kernel_id)
        rows = sessions_of(self._sessions, kernel_id)
        served = self._served.get(kernel_id)
        view = KernelView(
            kernel_id=kernel_id,
            state=served.state if served else KernelState.RUNNING,
            managed=served is not None,
            path=rows[0]["path"] if rows else manager.kernel_name,
            kernel_name=manager.kernel_name,
        )
        if served is None:
            reason, hint = not_managed(manager)
            return msgspec.structs.replace(view, reason=reason or None, hint=hint or None)
        kernel = served.kernel
        if kernel is None:
            return view
        silence, operation = self._trouble(), kernel.operation
        error = record_of(silence) if isinstance(silence, DaemonSilent) else kernel.error
        if self._tracked is not None:
            seen = self._tracked.as_seen(operation) if operation is not None else None
            operation = self._tracked.composed(kernel_id) or seen
        cell_paused = served.absent and served.output.runs_cell
        in_flight = operation is not None and not operation.is_over
        return msgspec.structs.replace(
            view,
            reason=served.waits or (error.message if error else None),
            hint=(error.hint or None) if error else None,
            error_code=error.code if error else None,
            snapshot_id=kernel.snapshot_id or None,
            parent_snapshot_id=kernel.parent_snapshot_id or None,
            operation=operation_view(operation) if operation and in_flight else None,
            since=kernel.since,
            failed_at=kernel.failed_at,
            moved_to=kernel.moved_to or None,
            memory_bytes=kernel.memory_bytes,
            gpu_bytes=kernel.gpu_bytes,
            gpu_utilization=kernel.gpu_utilization,
            resume_seconds=kernel.resume_seconds,
            suspended_bytes=kernel.suspended_bytes,
            suspend_cause=kernel.cause,
            taken_over=kernel.taken_over or None,
            changed_at=kernel.changed_at or None,
            autosave_seconds=kernel.autosave_seconds,
            cells_resume=self._cells_resume,
            restart_save_seconds=self._restart_save_seconds,
            idle_seconds=self._idle_seconds(manager),
            suspends_at=served.suspends_at,
            before_restart=served.before_restart or None,
            before_tool=served.before_tool or None,
            former_kept=served.is_former_kept,
            restart_lost=served.restart_lost or None,
            cell_paused=cell_paused,
            continues_alone=cell_paused
            and self._resume_busy
            and kernel.cause in STOPPED_WITH_THE_SERVER,
        )

    def _idle_seconds(self, manager: KernelManager) -> float:
        """Return after how long without activity a kernel is suspended although a page shows it; 0: never."""
        kernels = self._kernels
        if not (self._cells_resume and kernels.cull_connected and kernels.cull_idle_timeout > 0):
            return 0.0
        metadata = getattr(manager.kernel_spec, "metadata", None) or {}
        return float(metadata.get("cull_idle_timeout", kernels.cull_idle_timeout))
