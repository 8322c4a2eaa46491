"""Jupyter's sessions (which notebook has which kernel): read when a kernel is saved, listed again when it is adopted.

Session ids are kept: an open page disposes a session whose id has vanished, and with it its outputs in flight.
"""
# jupyter_server's methods carry no types:
# mypy: allow-untyped-calls

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, cast

from jupyter_server.services.sessions.sessionmanager import SessionManager

from ...client.left_kernels import path_below

if TYPE_CHECKING:
    from jupyter_server.services.kernels.kernelmanager import (
        AsyncMappingKernelManager,
        ServerKernelManager,
    )

    _Base = SessionManager
else:
    _Base = object

_COLUMNS = ("session_id", "path", "name", "type", "kernel_id")


def install_sessions(
    sessions: SessionManager,
    report: Callable[[str], None],
    adopted_for: Callable[[str], Awaitable[str]] | None,
) -> None:
    """Extend the configured session manager; one of a foreign class is unchanged.

    `report`: called for each kernel whose sessions change. `adopted_for`: returns the id of a kernel that was left for a notebook, empty
    if a new one is to be started, and raises an error if none may be; None: each notebook gets a new one.
    """
    if isinstance(sessions, SessionManager):
        sessions.__class__ = mixed(ReportingSessions, type(sessions))
        ours = cast("ReportingSessions", sessions)
        ours.gpuckpt_report, ours.gpuckpt_adopted_for = report, adopted_for


def mixed(mixin: type, used: type) -> type:
    """Return a subclass of `used` that `mixin` extends."""
    return type(f"GpuCkpt{used.__name__}", (mixin, used), {"__doc__": used.__doc__})


class ReportingSessions(_Base):
    """A mixin of the configured session manager: it reports created and changed sessions, and asks before it starts a kernel."""

    gpuckpt_report: Callable[[str], None]
    gpuckpt_adopted_for: Callable[[str], Awaitable[str]] | None

    async def start_kernel_for_session(
        self, session_id: str, path: str | None, *args: Any, **kwargs: Any
    ) -> str:
        """Return the id of a kernel that was left for the notebook; else start one as the base does.

        Raises DaemonUnavailable if the notebook may have one that is not listed.
        """
        if path and self.gpuckpt_adopted_for is not None:
            left = await self.gpuckpt_adopted_for(path)
            if left:
                return left
        kernel_id: str = await super().start_kernel_for_session(session_id, path, *args, **kwargs)
        return kernel_id

    async def save_session(self, session_id: str, *args: Any, **kwargs: Any) -> Any:
        """Save a session as the base does, then report it."""
        model = await super().save_session(session_id, *args, **kwargs)
        self._report(session_id)
        return model

    async def update_session(self, session_id: str, **kwargs: Any) -> None:
        """Update a session as the base does, then report it."""
        await super().update_session(session_id, **kwargs)
        self._report(session_id)

    async def kernel_culled(self, kernel_id: str) -> bool:
        """Return whether the kernel of a session is gone. Raise HTTPError 503 if it was left to the next server."""
        self.kernel_manager.gpuckpt_require_not_left(kernel_id)
        return await super().kernel_culled(kernel_id)

    def _report(self, session_id: str) -> None:
        rows = self.cursor.execute(
            "SELECT kernel_id FROM session WHERE session_id=?", (session_id,)
        ).fetchall()
        for row in rows:
            self.gpuckpt_report(row["kernel_id"])


def manager_of(kernels: AsyncMappingKernelManager, kernel_id: str) -> ServerKernelManager:
    """Return the manager of a kernel that is listed, as the server's own class."""
    return cast("ServerKernelManager", kernels.get_kernel(kernel_id))


def sessions_of(sessions: SessionManager, kernel_id: str) -> list[dict[str, Any]]:
    """Return the sessions of a kernel as rows of Jupyter's table, oldest first."""
    rows = sessions.cursor.execute(
        f"SELECT {', '.join(_COLUMNS)} FROM session WHERE kernel_id=?",  # noqa: S608 - constants
        (kernel_id,),
    )
    return [dict(row) for row in rows.fetchall()]


def list_sessions(sessions: SessionManager, rows: list[dict[str, Any]]) -> None:
    """List sessions again, whose kernels must be listed: Jupyter deletes those of unknown kernels at the next request."""
    known = {row["session_id"] for row in sessions.cursor.execute("SELECT session_id FROM session")}
    for row in rows:
        if row["session_id"] not in known:
            values = [row[column] for column in _COLUMNS]
            sessions.cursor.execute("INSERT INTO session VALUES (?,?,?,?,?)", values)


def forget_sessions(sessions: SessionManager, kernel_id: str) -> None:
    """Remove the sessions of a kernel that has ended: Jupyter keeps them until the next request, and the kernel's id is used again."""
    sessions.cursor.execute("DELETE FROM session WHERE kernel_id=?", (kernel_id,))


def moved_rows(rows: list[dict[str, Any]], *, saved_root: str, root: str) -> list[dict[str, Any]]:
    """Return the rows of an earlier server's sessions with paths relative to this server's `root`."""
    return [
        {**row, "path": path_below(row["path"], saved_root=saved_root, root=root)} for row in rows
    ]


def environment_of(
    kernels: AsyncMappingKernelManager, rows: list[dict[str, Any]]
) -> dict[str, str]:
    """Return the environment that jupyter_server would give a kernel with these sessions."""
    environment = dict(os.environ)
    if rows and rows[0].get("path"):
        cwd = kernels.cwd_for_path(rows[0]["path"])
        environment["JPY_SESSION_NAME"] = os.path.join(cwd, rows[0].get("name") or "")  # noqa: PTH118
    return environment
