"""The routes about snapshots, the store and remotes."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator
from dataclasses import replace
from http import HTTPStatus

import msgspec
from jupyter_server.auth.decorator import authorized
from tornado import web
from tornado.iostream import StreamClosedError

from ...errors import GpuCkptError
from ...wire import calls
from ...wire.calls import ARCHIVE, Route
from ...wire.snapshot_records import RetentionPolicy, Snapshot, StoreUsage, Verification
from ..jupyter_internals import has_begun_to_answer, is_finished
from ..rest_records import (
    SnapshotsView,
    operation_view,
    remotes_view,
    snapshot_view,
    snapshots_view,
)
from .rest_handler import GpuCkptHandler, RestRoutes

#: The limit of an imported archive, as large as any disk.
_MAX_ARCHIVE_BYTES = 1 << 50
#: The most pieces of an archive that are queued for the daemon.
_PIECES = 16
#: The characters that are replaced by a dash in the file name that a page proposes, and the length to which the name is cut.
_NOT_IN_NAMES, _LONGEST_NAME = re.compile(r"[^\w.-]+", re.ASCII), 100

ROUTES = RestRoutes()
_answers, _passed_on = ROUTES.answers, ROUTES.passed_on


@_passed_on(calls.snapshots, snapshots_view, _track_activity=False)
def _snapshots() -> None:
    """List snapshots, newest first; of one kernel or notebook if given; with `deleted`, those whose deletion can be undone."""


@web.stream_request_body
class _ImportHandler(GpuCkptHandler):
    """A handler that passes an archive on while it comes in, until the page disconnects."""

    _pieces: asyncio.Queue[bytes | None] | None = None
    sent: asyncio.Task[list[Snapshot]] | None = None

    async def prepare(self) -> None:  # type: ignore[override] # as APIHandler
        """Authenticate and authorize before the first byte: the answer begins only after the whole body has arrived."""
        await super().prepare()
        if self.request.method == "POST" and not is_finished(self):
            await self._begin()  # type: ignore[misc] # the decorators forget that it is a coroutine

    @web.authenticated
    @authorized
    async def _begin(self) -> None:
        self.request.connection.set_max_body_size(_MAX_ARCHIVE_BYTES)  # type: ignore[union-attr] # HTTP/1.1
        self._pieces = asyncio.Queue(_PIECES)
        sending = self.parts.link.daemon.send(calls.import_archive(_until_none(self._pieces)))
        self.sent = asyncio.ensure_future(sending)
        self.at_close(self.sent.cancel)
        # The error is retrieved here, because nothing is answered if the page disconnects.
        self.sent.add_done_callback(lambda task: task.cancelled() or task.exception())

    async def data_received(self, chunk: bytes) -> None:
        """Pass a piece of the archive on; drop it when the daemon reads no more."""
        await self.put(chunk)

    async def put(self, piece: bytes | None) -> None:
        """Pass a piece of the archive on; None: its end."""
        if self._pieces is None or self.sent is None:
            return
        waiting = asyncio.ensure_future(self._pieces.put(piece))
        try:
            await asyncio.wait({waiting, self.sent}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()


async def _until_none(pieces: asyncio.Queue[bytes | None]) -> AsyncGenerator[bytes]:
    while (piece := await pieces.get()) is not None:
        yield piece


@_answers(
    Route(SnapshotsView, "POST", "/snapshots/import", ARCHIVE, HTTPStatus.CREATED),
    base=_ImportHandler,
)
async def _import_archive(handler: _ImportHandler) -> SnapshotsView | None:
    """Answer with the imported snapshot, once the whole archive has arrived."""
    await handler.put(None)
    return None if handler.sent is None else snapshots_view(await handler.sent)


@_passed_on(calls.prune)
def _prune() -> None:
    """Delete, for good, the snapshots that a policy does not keep, or with `dry_run` only list them."""


@_passed_on(calls.manifest_summary)
def _manifest_summary() -> None:
    """Show the contents of a snapshot, never its environment or its connection key."""


@_passed_on(calls.annotate, snapshot_view)
def _annotate() -> None:
    """Change a snapshot's title or note, or whether it is pinned."""


# What a page deletes is always deleted in remotes as well.
@_passed_on(replace(calls.delete_snapshot, query={}))
def _delete_snapshot() -> None:
    """Delete a snapshot, which can be undone for a while; refused while a suspended kernel needs it."""


@_passed_on(calls.undelete, snapshot_view)
def _undelete() -> None:
    """List a deleted snapshot again."""


@_answers(calls.verify)
async def _verify(handler: GpuCkptHandler, snapshot_id: str) -> Verification | None:
    """Read and verify all of a snapshot, while the page waits for the response."""
    asked = asyncio.ensure_future(handler.parts.link.daemon.send(calls.verify(snapshot_id)))
    handler.at_close(asked.cancel)
    await asyncio.wait({asked})
    return None if asked.cancelled() else asked.result()


@_answers(replace(calls.export, query={"name": "The name of the file, without its suffix."}))
async def _export(handler: GpuCkptHandler, snapshot_id: str, name: str) -> None:
    """Send an archive of a snapshot, piece by piece as it comes."""
    try:
        async with handler.parts.link.daemon.export(snapshot_id) as (length, pieces):
            handler.set_header("Content-Type", "application/x-tar")
            handler.set_header("Content-Length", length)
            name = _NOT_IN_NAMES.sub("-", name or f"snapshot-{snapshot_id}")[:_LONGEST_NAME]
            handler.set_header("Content-Disposition", f'attachment; filename="{name}.tar"')
            async for piece in pieces:
                handler.write(piece)
                await handler.flush()
    except GpuCkptError as error:
        if not has_begun_to_answer(handler):
            raise
        handler.log.error("The export of snapshot %s was cut off: %s", snapshot_id, error)
        handler.detach().close()
    except StreamClosedError:
        handler.log.info("The client disconnected during the export of snapshot %s.", snapshot_id)


class StoreView(StoreUsage, frozen=True):
    """The sizes of the store in bytes, and the rules by which this server's snapshots expire."""

    retention: RetentionPolicy = RetentionPolicy()


@_answers(replace(calls.store, reply=StoreView), _track_activity=False)
async def _store(handler: GpuCkptHandler) -> StoreView:
    """Show the size of the store, its share by kernel, and the rules by which snapshots expire."""
    usage = await handler.parts.link.daemon.send(calls.store())
    retention = handler.parts.operations.retention
    return StoreView(**msgspec.structs.asdict(usage), retention=retention)


@_passed_on(calls.remotes, remotes_view)
def _remotes() -> None:
    """List the remotes in their last known state; no request goes to a remote."""


@_passed_on(calls.try_remote)
def _try_remote() -> None:
    """Test whether a place can be used for a remote, with the daemon's credentials; nothing is added."""


@_passed_on(calls.add_remote)
def _add_remote() -> None:
    """Add a remote, with a new store or with the one that is there; refuse to make a store where one is."""


@_passed_on(calls.join_line)
def _join_line() -> None:
    """Make a new line by which other machines join a remote; its code is shown only once."""


@_passed_on(calls.remote_sessions)
def _remote_sessions() -> None:
    """List the snapshots in a remote, by session of a notebook, the newest first."""


@_passed_on(calls.fetch_estimate)
def _fetch_estimate() -> None:
    """Show the size of a fetch, and the reasons why the kernel could not be resumed here."""


@_passed_on(calls.fetch, operation_view)
def _fetch() -> None:
    """Start fetching a snapshot; refuse it if its kernel could not be resumed here, unless forced."""
