"""The routes about snapshots and the store, one class each."""

from __future__ import annotations

import asyncio
import logging
import threading
from http import HTTPStatus
from typing import Any

import msgspec
from tornado.iostream import StreamClosedError
from tornado.web import stream_request_body

from ...errors import GpuCkptError
from ...wire.manifest_records import Manifest
from ...wire.snapshot_records import AnnotateRequest, PruneRequest, SnapshotNotebook, UploadRequest
from ..snapshots.inflow import Inflow
from .daemon_handler import BaseHandler

#: The largest imported archive in bytes: larger than any disk, so in effect there is no limit.
_MAX_ARCHIVE_BYTES = 1 << 50

_log = logging.getLogger(__name__)


class SnapshotsHandler(BaseHandler):
    """Handler for all snapshots."""

    async def get(self) -> None:
        """List snapshots, newest first; of one kernel or notebook if given; with `deleted`, those that can be undeleted."""
        lists = self.daemon.snapshot_lists
        deleted = self.get_query_argument("deleted", "") not in {"", "0"}
        find = lists.deleted if deleted else lists.snapshots
        kernel_id = self.get_query_argument("kernel_id", "")
        self.reply(await find(kernel_id, self.get_query_argument("path", "")))


class VariablesHandler(BaseHandler):
    """Handler for the variables of a snapshot."""

    async def get(self, snapshot_id: str) -> None:
        """Return the recorded variables of a snapshot's kernel."""
        self.reply(await asyncio.to_thread(self.daemon.machine.variables, snapshot_id))


class NotebookHandler(BaseHandler):
    """Handler for the notebook in a snapshot."""

    async def get(self, snapshot_id: str) -> None:
        """Return the notebook as it was stored; clients must validate it."""

        def stored() -> SnapshotNotebook:
            from .. import late_modules  # noqa: PLC0415 - late: see there

            return late_modules.notebooks.stored(snapshot_id, self.daemon.machine.store)

        self.reply(await asyncio.to_thread(stored))


class LaunchSpecHandler(BaseHandler):
    """Handler for the launch spec of a snapshot's kernel."""

    async def get(self, snapshot_id: str) -> None:
        """Return the launch spec, connection key included: clients must not pass it on."""
        self.reply(await asyncio.to_thread(self.daemon.machine.launch_spec, snapshot_id))


class ChangesHandler(BaseHandler):
    """A handler for the changes since a snapshot."""

    async def get(self, snapshot_id: str) -> None:
        """Compare files and machine with the snapshot."""
        self.reply(await asyncio.to_thread(self.daemon.machine.changes, snapshot_id))


def _summary(manifest: Manifest) -> dict[str, Any]:
    """Return a manifest as JSON values without its launch record, whose environment and connection key stay in the daemon."""
    summary: dict[str, Any] = msgspec.to_builtins(
        {
            "info": manifest.info,
            "host": manifest.host,
            "method": manifest.method,
            "processes": manifest.processes,
            "gpu": manifest.gpu,
            "seconds_by_stage": manifest.seconds_by_stage,
        }
    )
    summary["streams"] = [
        {"name": stream.name, "length": stream.length, "chunks": len(stream.chunks)}
        for stream in manifest.streams
    ]
    summary["captured_files"] = len(manifest.captured)
    summary["kept_files"] = [file.path for file in manifest.kept]
    return summary


class SnapshotHandler(BaseHandler):
    """Handler for one snapshot."""

    async def get(self, snapshot_id: str) -> None:
        """Show the contents of a snapshot, without environment and connection key."""
        machine = self.daemon.machine
        self.reply(await asyncio.to_thread(lambda: _summary(machine.store.manifest(snapshot_id))))

    async def patch(self, snapshot_id: str) -> None:
        """Change title, note or pin of a snapshot."""
        stated = msgspec.structs.asdict(self.record(AnnotateRequest))
        changes = {name: value for name, value in stated.items() if value is not None}
        machine = self.daemon.machine
        info = await asyncio.to_thread(lambda: machine.store.annotate(snapshot_id, changes))
        (changed,) = await self.daemon.snapshot_lists.described([info])
        self.reply(changed)

    async def delete(self, snapshot_id: str) -> None:
        """Delete a snapshot; for a while that can be undone."""
        here_only = self.get_query_argument("here_only", "") not in {"", "0"}
        await self.daemon.removal.delete(snapshot_id, here_only=here_only)
        self.set_status(HTTPStatus.NO_CONTENT)


class UndeleteHandler(BaseHandler):
    """Handler that undoes deletions."""

    async def post(self, snapshot_id: str) -> None:
        """List a deleted snapshot again."""
        info = await self.daemon.removal.undelete(snapshot_id)
        (back,) = await self.daemon.snapshot_lists.described([info])
        self.reply(back)


class VerifyHandler(BaseHandler):
    """Handler for verifications."""

    def initialize(self) -> None:
        """Create the event that is set when the client disconnects, which stops the verification."""
        self._gone = threading.Event()

    async def post(self, snapshot_id: str) -> None:
        """Read and verify all of a snapshot, while the client waits for the response."""
        self.reply(await self.daemon.transfers.verify(snapshot_id, self._gone))

    def on_connection_close(self) -> None:
        """Stop the verification, because the client has disconnected."""
        super().on_connection_close()
        self._gone.set()


class ExportHandler(BaseHandler):
    """Handler for exports."""

    async def get(self, snapshot_id: str) -> None:
        """Send the archive of a snapshot. After an error it ends before its announced length; the log has the cause."""
        pieces = self.daemon.transfers.export(snapshot_id)
        try:
            async for piece in pieces:
                if isinstance(piece, bytes):
                    self.write(piece)
                    await self.flush()
                else:
                    self.set_header("Content-Type", "application/x-tar")
                    self.set_header("Content-Length", piece.length)
        except GpuCkptError as error:
            if not self._headers_written:
                raise
            _log.error("the export of snapshot %s was cut off: %s", snapshot_id, error)
            self.detach().close()
        except StreamClosedError:
            _log.info("the client disconnected during the export of snapshot %s", snapshot_id)
        finally:
            await pieces.aclose()


@stream_request_body
class ImportHandler(BaseHandler):
    """Handler for imports."""

    _inflow: Inflow | None = None
    _task: asyncio.Task[Any] | None = None

    def prepare(self) -> None:
        """Start importing the archive while it comes in."""
        super().prepare()
        if self.request.method != "POST":
            return
        self.request.connection.set_max_body_size(_MAX_ARCHIVE_BYTES)  # type: ignore[union-attr] # HTTP/1.1
        self._inflow = Inflow()
        self._task = asyncio.ensure_future(self.daemon.transfers.import_archive(self._inflow))
        # The error is retrieved here, because `post` is not called if the client disconnects.
        self._task.add_done_callback(lambda task: task.cancelled() or task.exception())

    async def data_received(self, chunk: bytes) -> None:
        """Pass the next piece of the archive to the thread that reads it."""
        if self._inflow is not None:
            await self._inflow.put(chunk)

    async def post(self) -> None:
        """Return the imported snapshots, once the whole archive has arrived."""
        if self._inflow is not None and self._task is not None:
            self._inflow.end()
            snapshots = await self.daemon.snapshot_lists.described(await self._task)
            self.reply(snapshots, HTTPStatus.CREATED)

    def on_connection_close(self) -> None:
        """Stop the import, because the client has disconnected."""
        super().on_connection_close()
        if self._inflow is not None:
            self._inflow.cut_off()


class PruneHandler(BaseHandler):
    """A handler for retention on a client's request."""

    async def post(self) -> None:
        """Remove the snapshots that a policy does not keep, or only list them."""
        request = self.record(PruneRequest)
        self.reply(await self.daemon.removal.prune(request.policy, dry_run=request.dry_run))


class StoreHandler(BaseHandler):
    """Handler for the store."""

    async def get(self) -> None:
        """Return the store's disk use, and its share by notebook."""
        machine = self.daemon.machine
        usage = await asyncio.to_thread(lambda: machine.store.space())  # noqa: PLW0108 - opening the store blocks
        undo_seconds = self.daemon.settings.undo_delete_seconds
        self.reply(msgspec.structs.replace(usage, undo_delete_seconds=undo_seconds))


class UploadsHandler(BaseHandler):
    """Handler for uploads to remotes."""

    async def get(self) -> None:
        """Return the state of uploads to every remote."""
        self.reply(self.daemon.remote_collecting.added_to(await self.daemon.uploads.views()))

    async def post(self) -> None:
        """Upload snapshots before all others."""
        await self.daemon.uploads.ask(self.record(UploadRequest))
        self.set_status(HTTPStatus.ACCEPTED)


ROUTES: dict[str, type[BaseHandler]] = {
    "/snapshots": SnapshotsHandler,
    "/snapshots/prune": PruneHandler,
    "/snapshots/import": ImportHandler,
    "/snapshots/{snapshot_id}": SnapshotHandler,
    "/snapshots/{snapshot_id}/variables": VariablesHandler,
    "/snapshots/{snapshot_id}/notebook": NotebookHandler,
    "/snapshots/{snapshot_id}/launch": LaunchSpecHandler,
    "/snapshots/{snapshot_id}/changes": ChangesHandler,
    "/snapshots/{snapshot_id}/undelete": UndeleteHandler,
    "/snapshots/{snapshot_id}/verify": VerifyHandler,
    "/snapshots/{snapshot_id}/export": ExportHandler,
    "/store": StoreHandler,
    "/uploads": UploadsHandler,
}
