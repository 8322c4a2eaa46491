"""Kernels of a Jupyter server, by its REST interface and the websockets of kernels: its gate, agent and pages know what tools do."""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from http import HTTPStatus
from typing import Any, TypeVar

import msgspec
from tornado.httpclient import HTTPClientError, HTTPRequest
from tornado.websocket import WebSocketClientConnection, websocket_connect

from ..client.cell_output import CellOutput
from ..client.quick_httpx import httpx
from ..errors import ConfigurationError, DaemonUnavailable, ErrorRecord, error_from
from ..server.rest_records import (
    BranchView,
    ErrorView,
    KernelsView,
    KernelView,
    OperationView,
    SnapshotsView,
)
from ..wire import decoding
from ..wire.protocol import FilesChoice, OperationState
from ..wire.variable_changes import Comparison
from .backing import Done, SavedState, Session, done, saved_state
from .running_servers import FoundServer
from .tool_progress import tell

_Record = TypeVar("_Record")

#: The timeout of one request, and how long a wait for an operation lasts before its progress is told.
_ANSWER_SECONDS, _PROGRESS_SECONDS = 60.0, 1
#: How long code may take to end after an interrupt.
_INTERRUPT_SECONDS = 10.0
#: The most bytes of one message of a kernel; a larger one ends the connection.
_MAX_MESSAGE_BYTES = 100 << 20
_USERNAME = "gpuckpt-tool"
#: The replies of a server without this package.
_NO_KERNELS, _NO_SNAPSHOTS = b'{"kernels": [], "elsewhere": []}', b'{"snapshots": []}'


class RestBacking:
    """The kernels of one Jupyter server; it has none if this package is not enabled there."""

    is_server = True

    def __init__(self, server: FoundServer) -> None:
        self._server, self.name = server, f"the Jupyter server at {server.url}"
        self._headers = {"Authorization": f"token {server.token}"} if server.token else {}
        self._http = httpx.AsyncClient(
            base_url=server.url,
            headers=self._headers,
            timeout=_ANSWER_SECONDS,
            verify=not server.is_on_loopback,
            trust_env=False,
        )

    async def sessions(self) -> list[Session]:
        """List the kernels."""
        content = await self._send("GET", "api/gpuckpt/kernels", None, missing=_NO_KERNELS)
        return list(map(_session, decoding.from_json(content, KernelsView).kernels))

    async def snapshots(self) -> list[SavedState]:
        """List all snapshots, newest first."""
        content = await self._send("GET", "api/gpuckpt/snapshots", None, missing=_NO_SNAPSHOTS)
        found = decoding.from_json(content, SnapshotsView)
        return [saved_state(one, one.raw_bytes) for one in found.snapshots]

    async def save(self, kernel_id: str, title: str) -> Done:
        """Save a kernel, which runs on."""
        return await self._operate(f"kernels/{kernel_id}/save", name=title, tool=True)

    async def suspend(self, kernel_id: str, title: str) -> Done:
        """Save a kernel and end its processes."""
        return await self._operate(f"kernels/{kernel_id}/suspend", name=title, tool=True)

    async def resume(self, kernel_id: str) -> Done:
        """Bring a suspended or parked kernel back."""
        return await self._operate(f"kernels/{kernel_id}/resume")

    async def restore(self, kernel_id: str, snapshot_id: str, files: FilesChoice) -> Done:
        """Save a kernel's state, then bring it back from a snapshot."""
        body = {"snapshot_id": snapshot_id, "tool": True, "files": files}
        return await self._operate(f"kernels/{kernel_id}/roll_back", **body)

    async def branch(self, snapshot_id: str) -> str:
        """Start a second kernel from a snapshot; return its id."""
        path = f"snapshots/{snapshot_id}/branch"
        begun = await self._ask("POST", path, BranchView, tool=True)
        try:
            await self._finish(begun)
        except asyncio.CancelledError:
            with suppress(Exception):  # it may have been undone
                await asyncio.shield(self.end_branch(begun.kernel_id))
            raise
        return begun.kernel_id

    async def end_branch(self, kernel_id: str) -> None:
        """End a tool's branch at once."""
        await self._ask("DELETE", f"kernels/{kernel_id}/branch", type(None))

    async def compare(self, first: str, second: str) -> Comparison:
        """Compare the variables and files of two moments."""
        query = str(httpx.QueryParams(first=first, second=second))
        return await self._ask("GET", f"compare?{query}", Comparison)

    async def run(self, kernel_id: str, code: str, output: CellOutput, seconds: float) -> None:
        """Run code in a kernel, which is resumed for it."""
        async with self._connected(kernel_id) as socket:
            request_id = uuid.uuid4().hex
            await socket.write_message(json.dumps(_request(request_id, code)))
            listening = asyncio.ensure_future(_listen(socket, request_id, output))
            try:
                await asyncio.wait({listening}, timeout=seconds)
                if not listening.done():
                    output.time_out()
                    await self._interrupt(kernel_id)
                    await asyncio.wait({listening}, timeout=_INTERRUPT_SECONDS)
                    if not listening.done():
                        output.end("not ended")
                        return
            except asyncio.CancelledError:
                with suppress(Exception):
                    await asyncio.shield(self._interrupt(kernel_id))
                raise
            finally:
                listening.cancel()
            listening.result()

    async def close(self) -> None:
        """Close the connections; kernels go on."""
        await self._http.aclose()

    async def _interrupt(self, kernel_id: str) -> None:
        await self._send("POST", f"api/kernels/{kernel_id}/interrupt", None)

    async def _operate(self, path: str, **body: object) -> Done:
        return await self._finish(await self._ask("POST", path, OperationView, **body))

    async def _finish(self, operation: OperationView) -> Done:
        """Wait for the end of an operation; cancel it if the call of the tool is canceled."""
        path = f"operations/{operation.operation_id}"
        try:
            while operation.state is OperationState.RUNNING:
                operation = await self._ask(
                    "GET", f"{path}?wait={_PROGRESS_SECONDS}", OperationView
                )
                if operation.progress.stage:
                    await tell(f"{operation.kind}: {operation.progress.stage}")
        except asyncio.CancelledError:
            with suppress(Exception):
                await asyncio.shield(self._ask("POST", f"{path}/cancel", OperationView))
            raise
        if operation.error is not None:
            raise error_from(_error_record(operation.error))
        result = operation.result
        return Done("", 0.0) if result is None else done(result, result.new_bytes)

    async def _ask(self, method: str, path: str, kind: type[_Record], **body: object) -> _Record:
        """Send a request of this package's REST interface; return the reply as a record."""
        content = await self._send(method, f"api/gpuckpt/{path}", body or None)
        return decoding.from_json(content or b"null", kind)

    async def _send(self, method: str, path: str, body: object, missing: bytes = b"") -> bytes:
        """Send a request and return the reply's body; `missing`, if it is not empty, where the server does not know the path."""
        try:
            # Without a body the type still tells that this is no form of a page.
            response = await self._http.request(method, path, json=body if body else {})
        except httpx.TransportError as error:
            raise DaemonUnavailable(
                f"{self.name[0].upper()}{self.name[1:]} does not answer: {error}".rstrip(": ")
                + ".",
                hint="If it is being restarted, try again in a moment.",
            ) from error
        if response.is_success:
            return response.content
        if response.status_code in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}:
            raise self._refused()
        try:
            record = _error_record(decoding.from_json(response.content, ErrorView))
        except msgspec.DecodeError:
            if missing and response.status_code == HTTPStatus.NOT_FOUND:
                return missing
            phrase = HTTPStatus(response.status_code).phrase
            raise ConfigurationError(
                f"{self.name[0].upper()}{self.name[1:]} refuses {method} {path}: {phrase}.",
                hint="jupyter-gpuckpt may not be enabled there (jupyter server extension list).",
            ) from None
        raise error_from(record)

    def _refused(self) -> ConfigurationError:
        return ConfigurationError(
            f"{self.name[0].upper()}{self.name[1:]} does not accept this user's token.",
            hint="A server that only has a password gets a token by c.IdentityProvider.token or the variable JUPYTER_TOKEN.",
        )

    @asynccontextmanager
    async def _connected(self, kernel_id: str) -> AsyncIterator[WebSocketClientConnection]:
        url = f"{self._server.url}api/kernels/{kernel_id}/channels?session_id={uuid.uuid4().hex}"
        request = HTTPRequest(
            url.replace("http", "ws", 1),
            headers=self._headers,
            validate_cert=not self._server.is_on_loopback,
            connect_timeout=_ANSWER_SECONDS,
        )
        try:
            socket = await websocket_connect(request, max_message_size=_MAX_MESSAGE_BYTES)
        except HTTPClientError as error:
            if error.code in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}:
                raise self._refused() from error
            raise _connection_lost(self.name) from error
        except OSError as error:
            raise _connection_lost(self.name) from error
        try:
            yield socket
        finally:
            socket.close()


async def _listen(socket: WebSocketClientConnection, request_id: str, output: CellOutput) -> None:
    """Feed the messages about a run to its output until it is over."""
    while not (output.is_idle and output.status != "running"):
        text = await socket.read_message()
        if text is None:
            raise _connection_lost("the Jupyter server")
        if isinstance(text, bytes):  # it has buffers, as those of widgets
            continue
        message = json.loads(text)
        kind, content = message.get("msg_type", ""), message.get("content") or {}
        if (message.get("parent_header") or {}).get("msg_id") == request_id:
            output.feed(kind, content)
        elif kind == "status" and content.get("execution_state") in {"restarting", "dead"}:
            output.end("kernel died")
            return


def _connection_lost(name: str) -> DaemonUnavailable:
    return DaemonUnavailable(
        f"The connection to the kernel through {name} was lost.",
        hint="The code may still run. list_sessions shows the kernel's state.",
    )


def _request(request_id: str, code: str) -> dict[str, Any]:
    """Return an execute request for a kernel's websocket."""
    return {
        "header": {
            "msg_id": request_id,
            "msg_type": "execute_request",
            "username": _USERNAME,
            "session": request_id,
            "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "version": "5.3",
        },
        "parent_header": {},
        "metadata": {},
        "content": {
            "code": code,
            "silent": False,
            "store_history": True,
            "user_expressions": {},
            "allow_stdin": False,
            "stop_on_error": False,
        },
        "channel": "shell",
        "buffers": [],
    }


def _session(view: KernelView) -> Session:
    return Session(
        view.kernel_id,
        view.path,
        view.state,
        view.memory_bytes or view.suspended_bytes,
        view.gpu_bytes,
        view.snapshot_id or "",
        view.parent_snapshot_id or "",
        " ".join(filter(None, (view.reason, view.hint))),
        view.managed,
    )


def _error_record(view: ErrorView) -> ErrorRecord:
    return ErrorRecord(view.message, view.code, view.hint or "", view.details or "")
