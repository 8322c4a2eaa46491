"""A Jupyter server as a process of its own, with a daemon of its own, and a page's side of sessions and websockets."""

import json
import secrets
import signal
import subprocess
import threading
import time
import uuid
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest
import websocket
from jupyter_server.services.kernels.connection.base import (
    deserialize_binary_message,
    deserialize_msg_from_ws_v1,
    serialize_msg_to_ws_v1,
)

from tests.ports import free_port
from tests.programs import python_module

TIMEOUT = 60
#: Else each request reads all certificates of the machine, which takes ten times as long as the request.
NO_CERTIFICATES = False
PROTOCOL = "v1.kernel.websocket.jupyter.org"


class Server:
    """A running server; `stop` and `start` again keep its folders and its daemon."""

    #: What comes before every path.
    base = ""
    #: What the server's command is started with.
    prefix = ()

    def __init__(self, folder, env, *options):
        self.root, self.env, self.options = folder / "root", env, options
        self.root.mkdir(exist_ok=True)
        self.log_path = folder / "server.log"
        self.token = secrets.token_hex(8)
        self.port = free_port()
        self.process = None
        self.pages = []

    def start(self):
        command = [
            *self.prefix,
            *python_module("jupyter_server"),
            "--allow-root",
            "--no-browser",
        ]
        options = [
            f"--ServerApp.root_dir={self.root}",
            f"--ServerApp.port={self.port}",
            "--ServerApp.port_retries=0",
            f"--IdentityProvider.token={self.token}",
            # Whatever else is installed: ours, and nothing that takes seconds to load.
            "--ServerApp.jpserver_extensions=jupyter_gpuckpt=True",
            "--ServerApp.jpserver_extensions=jupyterlab=False",
            "--ServerApp.jpserver_extensions=jupyter_lsp=False",
            "--ServerApp.jpserver_extensions=notebook=False",
            "--ServerApp.jpserver_extensions=notebook_shim=False",
            *self.options,
        ]
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                [*command, *options],
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        deadline = time.monotonic() + TIMEOUT
        while True:
            try:
                self.get("api/status")
            except httpx.TransportError:
                assert self.process.poll() is None, self.log()
                assert time.monotonic() < deadline, self.log()
                time.sleep(0.1)
            else:
                return self

    def stop(self, how=signal.SIGTERM):
        """End it by a signal, or by REST if `how` is None; waits until it is gone."""
        for page in self.pages:
            page.close()
        self.pages = []
        if how is None:
            self.request("POST", "api/shutdown")
        elif self.process.poll() is None:
            self.process.send_signal(how)
        try:
            self.process.wait(TIMEOUT)
        except subprocess.TimeoutExpired:
            daemon = Path(self.env["JUPYTER_GPUCKPT_DATA_DIR"]) / "log" / "gpuckptd.log"
            said = f"{self.log()}\n---- gpuckptd\n{daemon.read_text()[-6000:]}"
            pytest.fail(f"the server does not end\n{said}", pytrace=False)

    def kill(self):
        self.stop(signal.SIGKILL)

    def log(self):
        return self.log_path.read_text(errors="replace")[-6000:]

    def request(self, method, path, *, ok=True, **arguments):
        headers = {"Authorization": f"token {self.token}"}
        url = f"http://127.0.0.1:{self.port}/{self.base}{path}"
        response = httpx.request(
            method, url, headers=headers, timeout=TIMEOUT, verify=NO_CERTIFICATES, **arguments
        )
        if ok:
            assert response.is_success, (
                f"{path}: {response.status_code} {response.text}\n{self.log()}"
            )
        return response

    def get(self, path):
        return self.request("GET", path).json()

    # What a page and the extension's front end do.

    def open(self, path="notebook.ipynb", kernel="python3", **options):
        """A session for a notebook, and a page that shows it."""
        body = {"path": path, "name": path, "type": "notebook", "kernel": {"name": kernel}}
        session = self.request("POST", "api/sessions", json=body).json()
        return self.page(session["kernel"]["id"], session["id"], **options)

    def page(self, kernel_id, session_id="", **options):
        page = Page(self, kernel_id, session_id, **options)
        self.pages.append(page)
        return page

    def kernel(self, kernel_id):
        return self.get(f"api/gpuckpt/kernels/{kernel_id}")

    def begin(self, verb, kernel_id, **body):
        """Ask for an operation."""
        response = self.request("POST", f"api/gpuckpt/kernels/{kernel_id}/{verb}", json=body)
        assert response.status_code == 202
        return response.json()

    def finish(self, operation):
        """Wait for its end."""
        deadline = time.monotonic() + TIMEOUT
        while operation["state"] == "running":
            assert time.monotonic() < deadline, operation
            operation = self.get(f"api/gpuckpt/operations/{operation['operation_id']}?wait=5")
        return operation

    def do(self, verb, kernel_id, **body):
        """An operation that succeeds."""
        operation = self.finish(self.begin(verb, kernel_id, **body))
        assert operation["state"] == "succeeded", f"{operation}\n{self.log()}"
        return operation

    def refused(self, method, path, **arguments):
        """The status and the error of a request that is refused."""
        response = self.request(method, f"api/gpuckpt/{path}", ok=False, **arguments)
        assert response.is_error, response.text
        body = response.json()
        assert {"message", "code", "hint"} <= set(body)
        return response.status_code, body


class Page:
    """A websocket of a kernel. `binary`: in the protocol that JupyterLab speaks, else in the older one.

    `client_id`: that of a page which connects again.
    """

    def __init__(self, server, kernel_id, session_id, *, binary=False, client_id=""):
        self.kernel_id, self.session_id = kernel_id, session_id
        self.client_id = client_id or uuid.uuid4().hex
        self.received = []
        self._new = threading.Condition()
        path = f"{server.base}api/kernels/{kernel_id}/channels?session_id={self.client_id}"
        url = f"ws://127.0.0.1:{server.port}/{path}"
        self._socket = websocket.create_connection(
            url,
            header=[f"Authorization: token {server.token}"],
            timeout=TIMEOUT,
            subprotocols=[PROTOCOL] if binary else [],
        )
        assert self._socket.subprotocol == (PROTOCOL if binary else None)
        self._thread = threading.Thread(target=self._receive, daemon=True)
        self._thread.start()

    def _receive(self):
        while True:
            try:
                text = self._socket.recv()
            except (OSError, websocket.WebSocketException):
                return
            if not text:
                return
            if self._socket.subprotocol:
                channel, parts = deserialize_msg_from_ws_v1(text)
                names = ("header", "parent_header", "metadata", "content")
                message = dict(zip(names, map(json.loads, parts[:4]), strict=True))
                message |= {"channel": channel, "msg_type": message["header"]["msg_type"]}
                message["buffers"] = parts[4:]
            elif isinstance(text, bytes):
                message = deserialize_binary_message(text)
            else:
                message = json.loads(text)
            with self._new:
                self.received.append(message)
                self._new.notify_all()

    def send(self, kind, content, channel="shell", metadata=None):
        """Send a request; gives its id."""
        header = {
            "msg_id": uuid.uuid4().hex,
            "msg_type": kind,
            "session": self.client_id,
            "username": "",
            "version": "5.3",
            "date": datetime.now(UTC).isoformat(),
        }
        parts = {"parent_header": {}, "metadata": metadata or {}, "content": content}
        message = {"header": header, **parts}
        if self._socket.subprotocol:
            packed = serialize_msg_to_ws_v1(
                message, channel, lambda part: json.dumps(part).encode()
            )
            self._socket.send_binary(packed)
        else:
            self._socket.send(json.dumps({**message, "channel": channel, "buffers": []}))
        return header["msg_id"]

    def execute(self, code):
        """Send a cell; gives the request's id."""
        return self.send("execute_request", {"code": code, "silent": False, "store_history": True})

    def wait_for(self, condition, seconds=TIMEOUT):
        """The first message that `condition` holds of."""
        deadline = time.monotonic() + seconds
        with self._new:
            while True:
                found = next((m for m in self.received if condition(m)), None)
                if found is not None:
                    return found
                left = deadline - time.monotonic()
                assert left > 0, f"no such message among {self.kinds()}"
                self._new.wait(left)

    def kinds(self):
        return [(m["msg_type"], m["parent_header"].get("msg_type")) for m in self.received]

    def reply(self, request_id):
        """The reply to a request, when it is there and the kernel is idle again."""

        def is_reply(message):
            same = message["parent_header"].get("msg_id") == request_id
            return same and message["msg_type"].endswith("_reply")

        def is_idle(message):
            same = message["parent_header"].get("msg_id") == request_id
            return same and message["content"].get("execution_state") == "idle"

        self.wait_for(is_idle)
        return self.wait_for(is_reply)

    def output(self, request_id):
        """What a cell printed."""
        self.reply(request_id)
        return self.printed(request_id)

    def printed(self, request_id):
        """What a cell has printed so far."""
        return "".join(
            m["content"]["text"]
            for m in list(self.received)
            if m["msg_type"] == "stream" and m["parent_header"].get("msg_id") == request_id
        )

    def run(self, code):
        """What `code` prints."""
        return self.output(self.execute(code))

    def close(self):
        self._socket.close()
        self._thread.join(10)


class Listener:
    """A page that listens to the server's events of one kind."""

    def __init__(self, server, schema_id):
        self.heard, self._schema_id = [], schema_id
        self._socket = websocket.create_connection(
            f"ws://127.0.0.1:{server.port}/api/events/subscribe",
            header=[f"Authorization: token {server.token}"],
            timeout=60,
        )
        self._thread = threading.Thread(target=self._receive, daemon=True)
        self._thread.start()

    def _receive(self):
        while True:
            try:
                text = self._socket.recv()
            except (OSError, websocket.WebSocketException):
                return
            event = json.loads(text) if text else {}
            if event.get("schema_id") == self._schema_id:
                self.heard.append(event)

    def close(self):
        self._socket.close()
        self._thread.join(10)


@pytest.fixture
def make_listener(server):
    """Listeners to the server's events."""
    made = []

    def make(schema_id):
        made.append(Listener(server, schema_id))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def eventually():
    """Wait for a condition; what it gave."""

    def wait(condition, seconds=20.0):
        deadline = time.monotonic() + seconds
        while not (found := condition()):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        return found

    return wait


@pytest.fixture
def own_server(daemon_env, tmp_path):
    """A started server for one test."""
    made = Server(tmp_path, daemon_env)
    yield made.start()
    if made.process.poll() is None:
        made.kill()


@pytest.fixture
def server(own_server):
    """The server of a test, in most modules."""
    return own_server


@pytest.fixture(scope="module")
def shared_server(module_daemon_env, tmp_path_factory):
    """A started server for all tests of a module, each with kernels of its own."""
    # What one test shuts down shall not be in the next one's way.
    options = ["--GpuCkptServer.undo_shutdown_for=0"]
    made = Server(tmp_path_factory.mktemp("server"), module_daemon_env, *options)
    yield made.start()
    if made.process.poll() is None:
        made.kill()


@pytest.fixture
def clean_server(shared_server):
    """The module's server, running and without kernels; a module whose tests need no server of their own calls it `server`."""
    if shared_server.process.poll() is not None:
        shared_server.start()
    yield shared_server
    for page in shared_server.pages:
        page.close()
    shared_server.pages = []
    if shared_server.process.poll() is None:
        for session in shared_server.get("api/sessions"):
            shared_server.request("DELETE", f"api/sessions/{session['id']}")
        for kernel in shared_server.get("api/kernels"):
            shared_server.request("DELETE", f"api/kernels/{kernel['id']}")


@pytest.fixture
def make_server(daemon_env, tmp_path):
    """Make servers of the same daemon and folders, with options of their own."""
    made = []

    def make(*options, folder=tmp_path, env=None):
        made.append(Server(folder, {**daemon_env, **(env or {})}, *options))
        return made[-1]

    yield make
    for one in made:
        if one.process is not None and one.process.poll() is None:
            one.kill()
