"""Tests of the private names of other packages that `server/jupyter_internals.py` uses, against the installed versions.

What fails here after an upgrade of jupyter_server, jupyter_client, tornado or AnyIO names the function to mend.
"""

import ast
import asyncio
import inspect
import re
import signal
import threading
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import anyio.to_thread
from jupyter_client.kernelspec import KernelSpec
from jupyter_client.session import Session
from jupyter_server.extension.application import ExtensionApp
from jupyter_server.serverapp import ServerApp
from jupyter_server.services.kernels.connection.channels import ZMQChannelsWebsocketConnection
from jupyter_server.services.kernels.kernelmanager import (
    AsyncMappingKernelManager,
    ServerKernelManager,
)
from jupyter_server.services.sessions.sessionmanager import SessionManager
from tornado.httpclient import AsyncHTTPClient
from tornado.httpserver import HTTPServer
from tornado.testing import bind_unused_port
from tornado.web import Application, RequestHandler

from jupyter_gpuckpt.server import jupyter_internals as internals
from jupyter_gpuckpt.server.kernels.notebook_sessions import list_sessions, sessions_of

#: Seconds after which something that does not happen any more is a failure.
TIMEOUT = 120


def with_kernel(work):
    """Run a coroutine function with jupyter_server's own kernel manager, a kernel's id, and that kernel's manager."""

    async def main():
        kernels = AsyncMappingKernelManager(connection_dir=folder)
        kernel_id = await kernels.start_kernel(kernel_name="python3")
        try:
            async with asyncio.timeout(TIMEOUT):
                await work(kernels, kernel_id, kernels.get_kernel(kernel_id))
        finally:
            await kernels.shutdown_all(now=True)

    with TemporaryDirectory() as folder:
        asyncio.run(main())


def with_handler(get, ask):
    """Run a server with one handler, whose method GET is `get`, and `ask` with its address."""

    class Handler(RequestHandler):
        pass

    Handler.get = get

    async def main():
        socket, port = bind_unused_port()
        server = HTTPServer(Application([("/", Handler)]))
        server.add_socket(socket)
        async with asyncio.timeout(TIMEOUT):
            await ask(f"http://127.0.0.1:{port}/")
        server.stop()
        await server.close_all_connections()

    asyncio.run(main())


def test_a_connection_takes_the_kernel_info_that_is_known():
    async def work(kernels, kernel_id, manager):
        assert internals.known_info(manager) == {}
        internals.set_known_info(manager, {"implementation": "known"})
        assert internals.known_info(manager) == {"implementation": "known"}
        # It would ask the kernel, and wait for ever: it has no channel.
        connection = ZMQChannelsWebsocketConnection(parent=manager)
        assert await connection.request_kernel_info() == {"implementation": "known"}

    with_kernel(work)


def test_a_connection_waits_for_the_kernel_info_that_is_expected():
    async def work(kernels, kernel_id, manager):
        expected = internals.expect_info(manager)
        assert internals.known_info(manager) == {}
        asked = asyncio.ensure_future(
            ZMQChannelsWebsocketConnection(parent=manager).request_kernel_info()
        )
        await asyncio.sleep(0)
        assert not asked.done()
        expected.set_result({"implementation": "expected"})
        assert await asked == {"implementation": "expected"}

    with_kernel(work)


def test_a_client_connects_to_another_address_where_it_is_told_one():
    async def work(kernels, kernel_id, manager):
        def elsewhere(self, channel):
            return "tcp://127.0.0.1:9" if channel == "control" else None

        bases = (internals.RedirectedClient, manager.client_factory)
        manager.client_factory = type("Client", bases, {"gpuckpt_url": elsewhere})
        client = manager.client()
        client.start_channels(hb=False)
        reached = {}
        for name in ("shell", "iopub", "stdin", "control"):
            channel = getattr(client, f"{name}_channel")
            reached[name] = int(channel.socket.last_endpoint.decode().rpartition(":")[2])
        client.stop_channels()
        ports = {name: getattr(manager, f"{name}_port") for name in reached}
        assert reached == ports | {"control": 9}

    with_kernel(work)


def test_a_manager_takes_a_kernelspec_that_is_not_installed():
    manager = ServerKernelManager(kernel_name="not-installed")
    internals.set_kernelspec(manager, KernelSpec(display_name="gone"))
    assert manager.kernel_spec.display_name == "gone"


def test_a_connection_file_is_kept_only_where_that_is_asked_for(tmp_path):
    left = {}
    for keeps in (True, False):
        manager = ServerKernelManager(connection_file=str(tmp_path / f"{keeps}.json"))
        manager.write_connection_file()
        if keeps:
            internals.keep_connection_file(manager)
        manager.cleanup_connection_file()
        left[keeps] = Path(manager.connection_file).exists()
    assert left == {True: True, False: False}


def test_the_receiver_of_the_activity_stream_notes_whether_a_kernel_is_busy():
    async def work(kernels, kernel_id, manager):
        receive = internals.receiver_of(internals.activity_stream(manager))
        kernel = Session(key=manager.session.key)
        for state in ("busy", "idle"):
            request = kernel.msg("execute_request")
            message = kernel.msg("status", {"execution_state": state}, parent=request)
            receive(kernel.serialize(message))
            assert manager.execution_state == state

    with_kernel(work)


def test_kernels_that_are_being_started_are_pending():
    async def work(kernels, kernel_id, manager):
        start = asyncio.ensure_future(kernels.start_kernel(kernel_name="python3"))
        while not (starting := internals.pending_starts(kernels)):
            assert not start.done()
            await asyncio.sleep(0)
        await asyncio.wait(starting)
        assert await start in kernels
        assert internals.pending_starts(kernels) == []

    with_kernel(work)


def test_what_is_buffered_for_a_page_is_found_and_dropped():
    async def work(kernels, kernel_id, manager):
        assert internals.buffered(kernels, kernel_id) is None
        assert internals.drop_buffered(kernels, kernel_id) == []
        stream = manager.connect_iopub()
        kernels.start_buffering(kernel_id, "a page", {"iopub": stream})
        assert internals.buffered(kernels, kernel_id)["session_key"] == "a page"
        assert internals.drop_buffered(kernels, kernel_id) == [stream]
        assert kernels.get_buffer(kernel_id, "a page") is None
        stream.close()

    with_kernel(work)


def test_a_running_kernel_is_listed_again():
    async def work(kernels, kernel_id, manager):
        kernels.notify_connect(kernel_id)
        kernels.remove_kernel(kernel_id)
        internals.forget_pages(kernels, kernel_id)
        assert kernel_id not in kernels
        internals.list_kernel(kernels, kernel_id, manager, pages=0)
        assert kernels.kernel_model(kernel_id)["connections"] == 0
        internals.list_kernel(kernels, kernel_id, manager, pages=2)
        assert kernels.kernel_model(kernel_id)["connections"] == 2
        assert not kernels.ports_changed(kernel_id)

    with_kernel(work)


def test_a_handler_knows_whether_it_has_answered():
    seen = []

    async def get(handler):
        def note():
            seen.append((internals.has_begun_to_answer(handler), internals.is_finished(handler)))

        note()
        handler.write("x")
        await handler.flush()
        note()
        await handler.finish()
        note()

    async def ask(url):
        await AsyncHTTPClient().fetch(url, connect_timeout=TIMEOUT, request_timeout=TIMEOUT)

    with_handler(get, ask)
    assert seen == [(False, False), (True, False), (True, True)]


def test_requests_in_flight_are_found():
    begun, ended = asyncio.Event(), asyncio.Event()

    async def get(handler):
        begun.set()
        await ended.wait()

    async def ask(url):
        assert internals.requests_in_flight() == set()
        answer = asyncio.ensure_future(
            AsyncHTTPClient().fetch(url, connect_timeout=TIMEOUT, request_timeout=TIMEOUT)
        )
        await begun.wait()
        waiting = internals.requests_in_flight()
        assert len(waiting) == 1
        ended.set()
        await asyncio.wait(waiting)
        assert (await answer).code == 200

    with_handler(get, ask)


def test_a_thread_of_anyio_ends_when_it_is_told_to():
    async def main():
        thread = await anyio.to_thread.run_sync(threading.current_thread)
        assert thread.is_alive()
        internals.stop_idle_threads()
        await asyncio.to_thread(thread.join, TIMEOUT)
        assert not thread.is_alive()

    asyncio.run(main())


def test_the_server_stops_by_a_method_that_takes_a_signal():
    assert list(inspect.signature(ServerApp._signal_stop).parameters) == ["self", "sig", "frame"]
    server = ServerApp()
    server.init_ioloop()
    loop: Any = server.io_loop
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # ignored where nohup runs the tests
    try:
        internals.stop_on_signals(server)
        assert signal.getsignal(signal.SIGHUP) is not signal.SIG_DFL
    finally:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.asyncio_loop.remove_signal_handler(number)
        signal.signal(signal.SIGHUP, before)
        server.io_loop.close()


def test_a_connection_sends_a_message_to_its_page_without_a_rate_limit():
    sending = inspect.signature(ZMQChannelsWebsocketConnection._on_zmq_reply)
    assert list(sending.parameters) == ["self", "stream", "msg_list"]
    limited = inspect.getsource(ZMQChannelsWebsocketConnection.handle_outgoing_message)
    assert "_on_zmq_reply" in limited


def test_an_extension_is_linked_before_it_is_loaded():
    # The one private method that is overridden (`extension.py`), for what must be done before the server's managers exist.
    assert list(inspect.signature(ExtensionApp._link_jupyter_server_extension).parameters) == [
        "self",
        "serverapp",
    ]


def test_rows_of_the_table_of_sessions_are_as_they_were():
    sessions = SessionManager(kernel_manager=AsyncMappingKernelManager())
    row = {
        "session_id": "s",
        "path": "a.ipynb",
        "name": "a",
        "type": "notebook",
        "kernel_id": "k",
    }
    list_sessions(sessions, [row])
    assert sessions_of(sessions, "k") == [row]
    sessions.close()


#: The one private method of another package that is overridden.
OVERRIDDEN = {"_link_jupyter_server_extension"}


def private_names_of_others(source):
    """Return the private attributes that a module uses and does not define itself."""
    used, defined = set(), set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and re.match(r"_[a-z]", node.attr):
            own = isinstance(node.value, ast.Name) and node.value.id == "self"
            stored = isinstance(node.ctx, ast.Store) and own
            (defined if stored else used).add(node.attr)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            defined.add(node.name)
        elif isinstance(node, ast.AnnAssign | ast.Assign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            defined |= {target.id for target in targets if isinstance(target, ast.Name)}
    return used - defined


def test_private_names_of_others_are_touched_in_one_module():
    server = Path(internals.__file__).parent
    touched = {
        path.name: names
        for path in server.rglob("*.py")
        if (names := private_names_of_others(path.read_text()) - OVERRIDDEN)
    }
    assert set(touched) == {"jupyter_internals.py"}
    assert len(touched["jupyter_internals.py"]) > 10  # else nothing is found
