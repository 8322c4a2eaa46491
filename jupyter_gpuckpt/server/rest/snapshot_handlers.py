"""The routes about snapshots and the store."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator
from http import HTTPStatus
from typing import Any

import msgspec
from jupyter_server.auth.decorator import authorized
from tornado import web
from tornado.iostream import StreamClosedError

from ...errors import GpuCkptError
from ...wire import calls
from ...wire.snapshot_records import (
    AnnotateRequest,
    PruneReport,
    PruneRequest,
    RetentionPolicy,
    Snapshot,
    StoreUsage,
    Verification,
)
from ..jupyter_internals import has_begun_to_answer, is_finished
from ..rest_records import SnapshotsView, SnapshotView, snapshot_view
from .openapi import ARCHIVE, answers
from .rest_handler import GpuCkptHandler

#: The limit of an imported archive, as large as any disk.
_MAX_ARCHIVE_BYTES = 1 << 50
#: The most pieces of an archive that are queued for the daemon.
_PIECES = 16
#: The characters that are replaced by a dash in the file name that a page proposes, and the length to which the name is cut.
_NOT_IN_NAMES, _LONGEST_NAME = re.compile(r"[^\w.-]+", re.ASCII), 100


class SnapshotsHandler(GpuCkptHandler):
    """Handler for all snapshots of the user."""

    _track_activity = False

    @answers(
        SnapshotsView,
        query={
            "kernel_id": "Only those of this kernel.",
            "path": "Only those of this notebook.",
            "deleted": "1: instead, those whose deletion can be undone.",
        },
    )
    async def get(self) -> None:
        """List snapshots, newest first; of one kernel or notebook if given; with `deleted`, those whose deletion can be undone."""
        found = await self.parts.link.daemon.send(
            calls.snapshots(
                self.get_query_argument("kernel_id", "") or None,
                path=self.get_query_argument("path", ""),
                deleted=self.get_query_argument("deleted", "") not in {"", "0"},
            )
        )
        self.reply(SnapshotsView(snapshots=list(map(snapshot_view, found))))


class SnapshotHandler(GpuCkptHandler):
    """Handler for one snapshot."""

    @answers(dict[str, Any])
    async def get(self, snapshot_id: str) -> None:
        """Show the contents of a snapshot, never its environment or its connection key."""
        self.reply(await self.parts.link.daemon.send(calls.manifest_summary(snapshot_id)))

    @answers(SnapshotView, request=AnnotateRequest)
    async def patch(self, snapshot_id: str) -> None:
        """Change a snapshot's title or note, or whether it is pinned."""
        asked = self.record(AnnotateRequest)
        changed = await self.parts.link.daemon.send(
            calls.annotate(snapshot_id, title=asked.title, note=asked.note, pinned=asked.pinned)
        )
        self.reply(snapshot_view(changed))

    @answers(None, HTTPStatus.NO_CONTENT)
    async def delete(self, snapshot_id: str) -> None:
        """Delete a snapshot, which can be undone for a while; refused while a suspended kernel needs it."""
        await self.parts.link.daemon.send(calls.delete_snapshot(snapshot_id))
        self.set_status(HTTPStatus.NO_CONTENT)
        self.finish()


class UndeleteHandler(GpuCkptHandler):
    """Handler that undoes deletions."""

    @answers(SnapshotView)
    async def post(self, snapshot_id: str) -> None:
        """List a deleted snapshot again."""
        self.reply(snapshot_view(await self.parts.link.daemon.send(calls.undelete(snapshot_id))))


class VerifyHandler(GpuCkptHandler):
    """Handler for verifications."""

    _verification: asyncio.Task[Verification] | None = None

    @answers(Verification)
    async def post(self, snapshot_id: str) -> None:
        """Read and verify all of a snapshot, while the page waits for the response."""
        self._verification = asyncio.ensure_future(
            self.parts.link.daemon.send(calls.verify(snapshot_id))
        )
        await asyncio.wait({self._verification})
        if not self._verification.cancelled():
            self.reply(self._verification.result())

    def on_connection_close(self) -> None:
        """Cancel the verification, because the page has disconnected."""
        super().on_connection_close()
        if self._verification is not None:
            self._verification.cancel()


class ExportHandler(GpuCkptHandler):
    """Handler for exports."""

    @answers(ARCHIVE, query={"name": "The name of the file, without its suffix."})
    async def get(self, snapshot_id: str) -> None:
        """Send an archive of a snapshot, piece by piece as it comes."""
        try:
            async with self.parts.link.daemon.export(snapshot_id) as (length, pieces):
                self.set_header("Content-Type", "application/x-tar")
                self.set_header("Content-Length", length)
                name = self.get_query_argument("name", "") or f"snapshot-{snapshot_id}"
                name = _NOT_IN_NAMES.sub("-", name)[:_LONGEST_NAME]
                self.set_header("Content-Disposition", f'attachment; filename="{name}.tar"')
                async for piece in pieces:
                    self.write(piece)
                    await self.flush()
        except GpuCkptError as error:
            if not has_begun_to_answer(self):
                raise
            self.log.error("The export of snapshot %s was cut off: %s", snapshot_id, error)
            self.detach().close()
        except StreamClosedError:
            self.log.info("The client disconnected during the export of snapshot %s.", snapshot_id)


@web.stream_request_body
class ImportHandler(GpuCkptHandler):
    """Handler for imports."""

    _pieces: asyncio.Queue[bytes | None] | None = None
    _sent: asyncio.Task[list[Snapshot]] | None = None

    async def prepare(self) -> None:  # type: ignore[override] # as APIHandler
        """Authenticate and authorize before the first byte: `post` is called only after the whole body has arrived."""
        await super().prepare()
        if self.request.method == "POST" and not is_finished(self):
            await self._begin()  # type: ignore[misc] # the decorators forget that it is a coroutine

    @web.authenticated
    @authorized
    async def _begin(self) -> None:
        self.request.connection.set_max_body_size(_MAX_ARCHIVE_BYTES)  # type: ignore[union-attr] # HTTP/1.1
        self._pieces = asyncio.Queue(_PIECES)
        sending = self.parts.link.daemon.send(calls.import_archive(_until_none(self._pieces)))
        self._sent = asyncio.ensure_future(sending)
        # The error is retrieved here, because `post` is not called if the page disconnects.
        self._sent.add_done_callback(lambda task: task.cancelled() or task.exception())

    async def data_received(self, chunk: bytes) -> None:
        """Pass a piece of the archive on; drop it when the daemon reads no more."""
        await self._put(chunk)

    @answers(SnapshotsView, HTTPStatus.CREATED, request=ARCHIVE)
    async def post(self) -> None:
        """Answer with the imported snapshot, once the whole archive has arrived."""
        await self._put(None)
        if self._sent is not None:
            self.reply(SnapshotsView(snapshots=list(map(snapshot_view, await self._sent))))

    def on_connection_close(self) -> None:
        """Cancel the import, because the page disconnected before the whole archive had arrived."""
        super().on_connection_close()
        if self._sent is not None:
            self._sent.cancel()

    async def _put(self, piece: bytes | None) -> None:
        if self._pieces is None or self._sent is None:
            return
        waiting = asyncio.ensure_future(self._pieces.put(piece))
        try:
            await asyncio.wait({waiting, self._sent}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()


class PruneHandler(GpuCkptHandler):
    """Handler for clean-ups."""

    @answers(PruneReport, request=PruneRequest)
    async def post(self) -> None:
        """Delete, for good, the snapshots that a policy does not keep, or with `dry_run` only list them."""
        asked = self.record(PruneRequest)
        prune = calls.prune(asked.policy, dry_run=asked.dry_run)
        self.reply(await self.parts.link.daemon.send(prune))


class StoreView(StoreUsage, frozen=True):
    """The sizes of the store in bytes, and the rules by which this server's snapshots expire."""

    retention: RetentionPolicy = RetentionPolicy()


class StoreHandler(GpuCkptHandler):
    """Handler for the store."""

    _track_activity = False

    @answers(StoreView)
    async def get(self) -> None:
        """Show the size of the store, its share by kernel, and the rules by which snapshots expire."""
        usage = await self.parts.link.daemon.send(calls.store())
        retention = self.parts.operations.retention
        self.reply(StoreView(**msgspec.structs.asdict(usage), retention=retention))


async def _until_none(pieces: asyncio.Queue[bytes | None]) -> AsyncGenerator[bytes]:
    while (piece := await pieces.get()) is not None:
        yield piece


ROUTES: dict[str, type[GpuCkptHandler]] = {
    "/snapshots": SnapshotsHandler,
    "/snapshots/import": ImportHandler,
    "/snapshots/prune": PruneHandler,
    "/snapshots/{snapshot_id}": SnapshotHandler,
    "/snapshots/{snapshot_id}/undelete": UndeleteHandler,
    "/snapshots/{snapshot_id}/verify": VerifyHandler,
    "/snapshots/{snapshot_id}/export": ExportHandler,
    "/store": StoreHandler,
}
