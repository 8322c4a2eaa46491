"""Private names of jupyter_server, jupyter_client and tornado: the only module that touches them.

No public interface offers what these functions do. Each has a test in tests/server/test_jupyter_internals.py that fails when a
new version takes the name away.
"""
# jupyter_server's methods carry no types:
# mypy: allow-untyped-calls

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from jupyter_server.services.shutdown import ShutdownHandler
from tornado.web import RequestHandler

if TYPE_CHECKING:
    from jupyter_client.client import KernelClient
    from jupyter_client.kernelspec import KernelSpec
    from jupyter_server.serverapp import ServerApp
    from jupyter_server.services.kernels.kernelmanager import AsyncMappingKernelManager
    from zmq.eventloop.zmqstream import ZMQStream

    _ClientBase = KernelClient
else:
    _ClientBase = object

Received = Callable[[list[bytes]], None]
#: The name of AnyIO's threads, for which the process waits at its exit.
_ANYIO_THREAD = "AnyIO worker thread"


# ---- a kernel's manager ----------------------------------------------------------------------------------------------


def known_info(manager: Any) -> dict[str, Any]:
    """Return the kernel's `kernel_info_reply`; empty if no client has requested it yet."""
    future = getattr(manager, "_kernel_info_future", None)
    if future is None or not future.done() or future.cancelled() or future.exception():
        return {}
    return future.result() or {}


def set_known_info(manager: Any, info: dict[str, Any]) -> None:
    """Store the kernel's `kernel_info_reply` where connections look it up before they request it."""
    expect_info(manager).set_result(info)


def expect_info(manager: Any) -> Future[dict[str, Any]]:
    """Return a future for the `kernel_info_reply`; connections await it instead of sending a request on the kernel's shell."""
    manager._kernel_info_future = future = Future[dict[str, Any]]()
    return future


def set_kernelspec(manager: Any, spec: KernelSpec) -> None:
    """Set the kernelspec of a manager whose kernel's own is no longer installed."""
    manager._kernel_spec = spec


def keep_connection_file(manager: Any) -> None:
    """Prevent a manager from deleting its connection file, which the kernel still uses."""
    manager._connection_file_written = False


def activity_stream(manager: Any) -> ZMQStream:
    """Return Jupyter's own iopub subscription to a kernel that is watched, from which it learns whether the kernel is busy."""
    stream: ZMQStream = manager._activity_stream
    return stream


def receiver_of(stream: ZMQStream) -> Received:
    """Return the callback that receives a stream's messages."""
    receive: Received = stream._recv_callback  # type: ignore[assignment]
    return receive


class RedirectedClient(_ClientBase):
    """A mixin of a class of kernel clients, which may connect a channel to another address than the kernel's."""

    def gpuckpt_url(self, channel: str) -> str | None:
        """Return the address for a channel; None: the kernel's own."""
        raise NotImplementedError

    def _make_url(self, channel: str) -> str:
        return self.gpuckpt_url(channel) or super()._make_url(channel)


# ---- the multi kernel manager ----------------------------------------------------------------------------------------


def has_untracked_types(kernels: AsyncMappingKernelManager) -> bool:
    """Return whether jupyter_server can exclude types of messages from a kernel's activity; older versions cannot."""
    return hasattr(kernels, "untracked_message_types")


def pending_starts(kernels: AsyncMappingKernelManager) -> list[asyncio.Future[Any]]:
    """Return the futures of the kernels that are being started."""
    return list(kernels._pending_kernels.values())


def buffered(kernels: AsyncMappingKernelManager, kernel_id: str) -> dict[str, Any] | None:
    """Return the buffered messages for a disconnected page, as `session_key`, `channels`, `buffer`; None without any."""
    found: dict[str, Any] | None = kernels._kernel_buffers.get(kernel_id)
    return found


def drop_buffered(kernels: AsyncMappingKernelManager, kernel_id: str) -> list[ZMQStream]:
    """Drop the messages buffered for a kernel and return its streams, which the caller must close."""
    found = kernels._kernel_buffers.pop(kernel_id, None)
    return list(found["channels"].values()) if found else []


def forget_pages(kernels: AsyncMappingKernelManager, kernel_id: str) -> None:
    """Drop the counts of pages and the ports of a kernel that is no longer listed."""
    kernels._kernel_connections.pop(kernel_id, None)
    kernels._kernel_ports.pop(kernel_id, None)


def list_kernel(
    kernels: AsyncMappingKernelManager, kernel_id: str, manager: Any, pages: int
) -> None:
    """List a kernel that already runs, with the number of pages that are connected to it."""
    kernels._kernels[kernel_id] = manager
    kernels._kernel_connections[kernel_id] = pages
    kernels._kernel_ports[kernel_id] = manager.ports


# ---- requests, websockets, signals -----------------------------------------------------------------------------------


def is_finished(handler: RequestHandler) -> bool:
    """Return whether a request was already answered, for instance by a redirect."""
    return handler._finished


def has_begun_to_answer(handler: RequestHandler) -> bool:
    """Return whether the status of a response was sent and cannot be changed."""
    return handler._headers_written


def send_to_page(connection: Any, stream: ZMQStream, message: Any) -> None:
    """Send a page a message of the kernel without counting it in Jupyter's rate limit, which would drop some."""
    connection._on_zmq_reply(stream, message)


def requests_in_flight() -> set[asyncio.Task[Any]]:
    """Return the tasks in which tornado runs handlers, except that of the request that stops the server."""
    found = set()
    for task in asyncio.all_tasks():
        coroutine: Any = task.get_coro()
        if getattr(coroutine, "cr_code", None) is RequestHandler._execute.__code__:
            frame = coroutine.cr_frame
            if frame is not None and not isinstance(frame.f_locals["self"], ShutdownHandler):
                found.add(task)
    return found


def stop_idle_threads() -> None:
    """Stop the threads of AnyIO, each after its current work."""
    for thread in threading.enumerate():
        if thread.name == _ANYIO_THREAD and hasattr(thread, "stop"):
            thread.stop()


def stop_on_signals(serverapp: ServerApp) -> None:
    """Stop the server in order on SIGTERM, SIGINT and SIGHUP, unless other code handles them.

    Jupyter handles SIGINT only with a terminal, and SIGHUP never: the server would end without its cleanup, and its kernels
    would not be suspended. JupyterHub's local spawner sends SIGINT. Jupyter's own handler first writes a log line, which
    raises an error if the signal interrupts another log call. Called by the event loop, it interrupts nothing.
    """
    replaced = {signal.default_int_handler, signal.SIG_DFL, serverapp._signal_stop}
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) in replaced:
            loop = serverapp.io_loop.asyncio_loop  # type: ignore[attr-defined] # tornado's only kind
            loop.add_signal_handler(number, serverapp._signal_stop, number, None)
