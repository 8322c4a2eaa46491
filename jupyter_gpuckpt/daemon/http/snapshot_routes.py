"""The answers to requests about snapshots, the store and remotes."""

from __future__ import annotations

import asyncio
import logging
import threading
from asyncio import to_thread
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from tornado.iostream import StreamClosedError
from tornado.web import stream_request_body

from ...errors import GpuCkptError
from ...wire import calls
from ...wire import snapshot_records as records
from ...wire.folder_records import FolderComparison
from ...wire.manifest_records import LaunchSpec, Manifest
from ..kernels.kernel_records import KernelRecord
from ..snapshots.inflow import Inflow
from .daemon_handler import BaseHandler, DaemonRoutes

#: The largest imported archive in bytes: larger than any disk, so in effect there is no limit.
_MAX_ARCHIVE_BYTES = 1 << 50

_log = logging.getLogger(__name__)


def _in_thread(method: Callable[[str], Any]) -> Callable[[str], Awaitable[Any]]:
    return lambda given: to_thread(method, given)


_routes = DaemonRoutes()
_answers = _routes.answers
_routes.passed_on(
    {
        calls.snapshot_variables: lambda daemon: _in_thread(daemon.machine.variables),
        calls.upload: lambda daemon: daemon.uploads.ask,
        calls.remotes: lambda daemon: daemon.remote_sessions.remotes,
        calls.try_remote: lambda daemon: daemon.new_remotes.test,
        calls.add_remote: lambda daemon: daemon.new_remotes.add,
        calls.join_line: lambda daemon: daemon.new_remotes.line,
        calls.remote_sessions: lambda daemon: daemon.remote_sessions.sessions,
        calls.fetch_estimate: lambda daemon: daemon.remote_sessions.estimate,
        calls.fetch: lambda daemon: daemon.remote_sessions.fetch,
    }
)


@_answers(calls.snapshots)
def _snapshots(
    handler: BaseHandler, kernel_id: str, path: str, deleted: str
) -> Awaitable[list[records.Snapshot]]:
    lists = handler.daemon.snapshot_lists
    return (lists.snapshots if deleted in {"", "0"} else lists.deleted)(kernel_id, path)


@_answers(calls.launch_spec)
def _launch_spec(handler: BaseHandler, snapshot_id: str, store: str) -> Awaitable[LaunchSpec]:
    return to_thread(handler.daemon.machine.launch_spec, snapshot_id, store)


@_answers(calls.snapshot_notebook)
def _notebook(handler: BaseHandler, snapshot_id: str) -> Awaitable[records.SnapshotNotebook]:
    def stored() -> records.SnapshotNotebook:
        from .. import late_modules  # noqa: PLC0415 - late: see there

        return late_modules.notebooks.stored(snapshot_id, handler.daemon.machine.store)

    return to_thread(stored)


@_answers(calls.manifest_summary)
def _manifest_summary(handler: BaseHandler, snapshot_id: str) -> Awaitable[dict[str, Any]]:
    machine = handler.daemon.machine
    return to_thread(lambda: _summary(machine.store.manifest(snapshot_id)))


def _summary(manifest: Manifest) -> dict[str, Any]:
    """Return a manifest as JSON values without its launch record, whose environment and connection key stay in the daemon."""
    shown = ("info", "host", "method", "processes", "gpu", "seconds_by_stage")
    summary: dict[str, Any] = msgspec.to_builtins({name: getattr(manifest, name) for name in shown})
    summary["streams"] = [
        {"name": stream.name, "length": stream.length, "chunks": len(stream.chunks)}
        for stream in manifest.streams
    ]
    summary["captured_files"] = len(manifest.captured)
    summary["kept_files"] = [file.path for file in manifest.kept]
    return summary


@_answers(calls.changes)
def _changes(handler: BaseHandler, snapshot_id: str, files: str) -> Awaitable[records.Changes]:
    with_files = files not in {"", "0"}
    return to_thread(handler.daemon.machine.changes, snapshot_id, with_files=with_files)


@_answers(calls.compare_files)
def _compare_files(handler: BaseHandler, first: str, second: str) -> Awaitable[FolderComparison]:
    daemon = handler.daemon

    def moment(moment_id: str) -> Manifest | KernelRecord:
        kernel = daemon.kernels.find(moment_id)
        return kernel.record if kernel else daemon.machine.store.manifest(moment_id)

    return to_thread(lambda: daemon.machine.compare_files(moment(first), moment(second)))


@_answers(calls.annotate)
async def _annotate(
    handler: BaseHandler, snapshot_id: str, request: records.AnnotateRequest
) -> records.Snapshot:
    stated = msgspec.structs.asdict(request)
    changes = {name: value for name, value in stated.items() if value is not None}
    machine = handler.daemon.machine
    info = await to_thread(lambda: machine.store.annotate(snapshot_id, changes))
    (changed,) = await handler.daemon.snapshot_lists.described([info])
    return changed


@_answers(calls.delete_snapshot)
async def _delete_snapshot(handler: BaseHandler, snapshot_id: str, here_only: str) -> None:
    await handler.daemon.removal.delete(snapshot_id, here_only=here_only not in {"", "0"})


@_answers(calls.undelete)
async def _undelete(handler: BaseHandler, snapshot_id: str) -> records.Snapshot:
    info = await handler.daemon.removal.undelete(snapshot_id)
    (back,) = await handler.daemon.snapshot_lists.described([info])
    return back


@_answers(calls.verify)
def _verify(handler: BaseHandler, snapshot_id: str) -> Awaitable[records.Verification]:
    """Read and verify all of a snapshot, until the client disconnects."""
    gone = threading.Event()
    handler.at_close(gone.set)
    return handler.daemon.transfers.verify(snapshot_id, gone)


@_answers(calls.export)
async def _export(handler: BaseHandler, snapshot_id: str) -> None:
    """Send the archive of a snapshot. After an error it ends before its announced length; the log has the cause."""
    pieces = handler.daemon.transfers.export(snapshot_id)
    try:
        async for piece in pieces:
            if isinstance(piece, bytes):
                handler.write(piece)
                await handler.flush()
            else:
                handler.set_header("Content-Type", "application/x-tar")
                handler.set_header("Content-Length", piece.length)
    except GpuCkptError as error:
        if not handler._headers_written:
            raise
        _log.error("the export of snapshot %s was cut off: %s", snapshot_id, error)
        handler.detach().close()
    except StreamClosedError:
        _log.info("the client disconnected during the export of snapshot %s", snapshot_id)
    finally:
        await pieces.aclose()


@stream_request_body
class _ImportHandler(BaseHandler):
    """A handler that imports an archive while it comes in, until the client disconnects."""

    inflow: Inflow | None = None
    task: asyncio.Task[Any]

    def prepare(self) -> None:
        super().prepare()
        if self.request.method != "POST":
            return
        self.request.connection.set_max_body_size(_MAX_ARCHIVE_BYTES)  # type: ignore[union-attr] # HTTP/1.1
        self.inflow = Inflow()
        self.at_close(self.inflow.cut_off)
        self.task = asyncio.ensure_future(self.daemon.transfers.import_archive(self.inflow))
        # The error is retrieved here, because the answer is not computed if the client disconnects.
        self.task.add_done_callback(lambda task: task.cancelled() or task.exception())

    async def data_received(self, chunk: bytes) -> None:
        """Pass the next piece of the archive to the thread that reads it."""
        if self.inflow is not None:
            await self.inflow.put(chunk)


@_answers(calls.import_archive, base=_ImportHandler)
async def _import_archive(handler: _ImportHandler) -> list[records.Snapshot] | None:
    """Return the imported snapshots, once the whole archive has arrived."""
    if handler.inflow is None:
        return None
    handler.inflow.end()
    return await handler.daemon.snapshot_lists.described(await handler.task)


@_answers(calls.prune)
def _prune(handler: BaseHandler, request: records.PruneRequest) -> Awaitable[records.PruneReport]:
    return handler.daemon.removal.prune(request.policy, dry_run=request.dry_run)


@_answers(calls.store)
async def _store(handler: BaseHandler) -> records.StoreUsage:
    machine = handler.daemon.machine
    usage = await to_thread(lambda: machine.store.space())  # noqa: PLW0108 - opening the store blocks
    undo_seconds = handler.daemon.settings.undo_delete_seconds
    return msgspec.structs.replace(usage, undo_delete_seconds=undo_seconds)


@_answers(calls.uploads)
async def _uploads(handler: BaseHandler) -> list[records.RemoteUploads]:
    views = await handler.daemon.uploads.views()
    return handler.daemon.remote_collecting.added_to(views)


ROUTES = _routes.handlers(BaseHandler)
