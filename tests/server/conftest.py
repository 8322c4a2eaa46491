"""A Jupyter server as a process of its own, with a daemon of its own: for one test, or for many that each find it empty."""

import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from http.cookiejar import DefaultCookiePolicy
from pathlib import Path

import httpx
import pytest

from tests.conftest import end_everything_below, wait_for
from tests.ports import free_port
from tests.programs import python_module
from tests.server import contract
from tests.server.page import TIMEOUT, Listener, Page

#: Else each request reads all certificates of the machine, which takes ten times as long as the request.
NO_CERTIFICATES = False
#: One for all requests, because making one takes as long as a request. It keeps neither connections nor cookies.
_CLIENT = httpx.Client(
    verify=NO_CERTIFICATES, timeout=TIMEOUT, limits=httpx.Limits(max_keepalive_connections=0)
)
_CLIENT.cookies.jar.set_policy(DefaultCookiePolicy(allowed_domains=[]))


class Process(subprocess.Popen):
    """The process of a server. `was_told_to_end`: a test has ended it, so that its end is no defect."""

    was_told_to_end = False

    def send_signal(self, signum):
        self.was_told_to_end |= signum in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)
        super().send_signal(signum)


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
            "--ServerApp.jpserver_extensions=jupyter_resource_usage=False",
            "--ServerApp.jpserver_extensions=jupyter_server_proxy=False",
            "--ServerApp.jpserver_extensions=notebook=False",
            "--ServerApp.jpserver_extensions=notebook_shim=False",
            *self.options,
        ]
        with self.log_path.open("ab") as log:
            self.process = Process(
                [*command, *options],
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        deadline = time.monotonic() + TIMEOUT
        while not self._answers():
            assert self.process.poll() is None, self.log()
            assert time.monotonic() < deadline, self.log()
            time.sleep(0.1)
        return self

    def _answers(self):
        try:
            # Costs a hundredth of a request, and most of the time nobody listens.
            socket.create_connection(("127.0.0.1", self.port), TIMEOUT).close()
            self.get("api/status")
        except (OSError, httpx.TransportError):
            return False
        return True

    def stop(self, how=signal.SIGTERM):
        """End the server by a signal, or by REST if `how` is None; wait until its process is gone."""
        for page in self.pages:
            page.close()
        self.pages = []
        self.process.was_told_to_end = True
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
        response = _CLIENT.request(method, url, headers=headers, **arguments)
        if ok:
            assert response.is_success, (
                f"{path}: {response.status_code} {response.text}\n{self.log()}"
            )
        contract.check(method, path, response)
        return response

    def get(self, path):
        return self.request("GET", path).json()

    # What a page and the extension's front end do.

    def open(self, path="notebook.ipynb", kernel="python3", **options):
        """Start a session for a notebook and return a page that shows it."""
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
        """Start an operation and return its record."""
        response = self.request("POST", f"api/gpuckpt/kernels/{kernel_id}/{verb}", json=body)
        assert response.status_code == 202
        return response.json()

    def finish(self, operation):
        """Wait for the end of an operation and return its record."""
        deadline = time.monotonic() + TIMEOUT
        while operation["state"] == "running":
            assert time.monotonic() < deadline, operation
            operation = self.get(f"api/gpuckpt/operations/{operation['operation_id']}?wait=5")
        return operation

    def do(self, verb, kernel_id, **body):
        """Do an operation, which must succeed, and return its record."""
        operation = self.finish(self.begin(verb, kernel_id, **body))
        assert operation["state"] == "succeeded", f"{operation}\n{self.log()}"
        return operation

    def bring_back(self, kernel_id):
        """Resume a kernel, unless a cell that came too late for the suspend does so already."""
        path = f"api/gpuckpt/kernels/{kernel_id}/resume"
        response = self.request("POST", path, json={}, ok=False)
        if response.status_code == 409:
            assert response.json()["code"] in ("kernel_busy", "kernel_state_conflict")
            wait_for(lambda: self.kernel(kernel_id)["state"] == "running", TIMEOUT, said=self.log)
        else:
            assert self.finish(response.json())["state"] == "succeeded"

    def refused(self, method, path, **arguments):
        """Send a request that must be refused; return the status and the error."""
        response = self.request(method, f"api/gpuckpt/{path}", ok=False, **arguments)
        assert response.is_error, response.text
        body = response.json()
        assert {"message", "code", "hint"} <= set(body)
        return response.status_code, body


class SharedServer(Server):
    """A server for many tests. Whatever one of them did to it, the next one finds it running and empty."""

    def __init__(self, folder, env):
        options = (
            # What one test shuts down shall not be in the next one's way.
            "--GpuCkptServer.undo_shutdown_for=0",
            # A slow machine must not change what comes of a restart.
            "--GpuCkptServer.undo_restart_within=100",
            # Dead kernels are looked for every 3 s otherwise, for which tests would have to wait.
            "--KernelRestarter.time_to_dead=0.3",
        )
        super().__init__(folder, env, *options)
        self._home = Path(env["JUPYTER_GPUCKPT_DATA_DIR"]).parent
        self._as_made = self._as_started = self._settings()

    def _settings(self):
        """Return the settings that a test may have changed to start the server in another way."""
        names = ("options", "port", "prefix", "root", "token")
        return {"env": dict(self.env), **{name: getattr(self, name) for name in names}}

    def made_ready(self, *options, env=None):
        """Return the server after starting it, with more `options` and variables than it was made with.

        Where it runs with others, which has no kernels then, it is started anew; its daemon stays.
        """
        assert not any(option.startswith("--GpuCkptDaemon.") for option in options)
        if self.process is not None and self.process.poll() is not None:
            self.throw_away()  # it ended between two tests
        # An option that is given twice is an error, for which the server starts without the extension.
        given = {option.partition("=")[0] for option in options}
        made = [one for one in self._as_made["options"] if one.partition("=")[0] not in given]
        wanted = {
            **self._as_made,
            "options": (*made, *options),
            "env": {**self._as_made["env"], **(env or {})},
        }
        if wanted != self._as_started:
            if self.process is not None:
                self.kill()
            self._set(wanted)
        return self if self.process is not None else self.start()

    def _set(self, settings):
        """Take settings over, for the next start."""
        vars(self).update({**settings, "env": dict(settings["env"]), "process": None})
        self._as_started = settings

    def fail_if_it_died(self):
        """Fail the running test, with the log, if the server ended by itself; another one with the same settings runs then."""
        if self.process is None or self.process.poll() is None or self.process.was_told_to_end:
            return
        said = f"the server ended by itself, with status {self.process.returncode}\n{self.log()}"
        settings = self._as_started
        self.throw_away()
        self._set(settings)
        self.start()
        pytest.fail(said, pytrace=False)

    def clear(self):
        """Remove everything that a test has left, by requests; if that fails, make a new server.

        Fails the test if the server ended by itself.
        """
        try:
            self.fail_if_it_died()
        finally:
            self._clear()

    def _clear(self):
        for page in self.pages:
            page.close()
        self.pages = []
        if self.process is not None and not (self._is_as_started() and self._is_emptied()):
            self.throw_away()
        # The server itself has a database in Jupyter's data directory, which stays.
        kernelspecs = Path(self.env["JUPYTER_DATA_DIR"], "kernels")
        for left in (kernelspecs, self.env["JUPYTER_CONFIG_DIR"], self.env["IPYTHONDIR"]):
            shutil.rmtree(left, ignore_errors=True)
        shutil.rmtree(self.root)
        self.root.mkdir()
        if self.process is not None:
            os.truncate(self.log_path, 0)

    def _is_as_started(self):
        return self._settings() == self._as_started and self.process.poll() is None

    def _is_emptied(self):
        """End all kernels and delete all snapshots; return whether that was possible."""
        everything = (
            ("api/sessions", None, "id"),
            ("api/kernels", None, "id"),
            ("api/gpuckpt/snapshots", "snapshots", "snapshot_id"),
        )
        try:
            for path, name, key in everything:
                for one in self._listed(path, name):
                    self.request("DELETE", f"{path}/{one[key]}", ok=False)
            return not any(
                self._listed(path, name)
                for path, name, _ in (*everything, ("api/gpuckpt/kernels", "kernels", ""))
            )
        except httpx.HTTPError:
            return False

    def _listed(self, path, name):
        found = self.request("GET", path, ok=False)
        found.raise_for_status()
        return found.json()[name] if name else found.json()

    def throw_away(self):
        """Kill the server, its daemon and its kernels, and delete their folders; the next start makes them anew."""
        if self.process is not None and self.process.poll() is None:
            self.kill()
        self._set(self._as_made)
        end_everything_below(self._home)
        for folder in self._home.iterdir():
            shutil.rmtree(folder)
        self.log_path.unlink(missing_ok=True)


@pytest.fixture(autouse=True)
def fails_if_the_server_died(request):
    """Fail the test during which the server of a module died, and not those after it, which get another one."""
    yield
    if "server_of_all" in request.fixturenames:
        request.getfixturevalue("server_of_all").fail_if_it_died()


@pytest.fixture
def make_listener(server):
    """Make listeners to the server's events."""
    made = []

    def make(schema_id):
        made.append(Listener(server, schema_id))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def eventually():
    """Return the function that waits until something is true and returns it."""
    return wait_for


@pytest.fixture
def own_server(daemon_env, tmp_path):
    """Start a server for one test."""
    made = Server(tmp_path, daemon_env)
    yield made.start()
    if made.process.poll() is None:
        made.kill()


@pytest.fixture
def server(own_server):
    """Return the server of a test, as most modules use it."""
    return own_server


@pytest.fixture(scope="session")
def server_of_all(session_daemon_env, tmp_path_factory):
    """Make the server of all tests that need none of their own."""
    made = SharedServer(tmp_path_factory.mktemp("server"), session_daemon_env)
    yield made
    made.throw_away()


@pytest.fixture
def clean_server(server_of_all):
    """Return a server without kernels and snapshots, shared by tests; modules that use it define `server` by it."""
    yield server_of_all.made_ready()
    server_of_all.clear()


@pytest.fixture
def server_with(server_of_all):
    """Return a function that gives the shared server, empty, started with more options and variables.

    It is started anew only where the last test wanted others, and its daemon stays: options of the daemon need `make_server`.
    """
    yield server_of_all.made_ready
    server_of_all.clear()


@pytest.fixture(scope="module")
def shared_server(server_of_all):
    """Return a server that is emptied after a module, whose tests see each other's kernels and snapshots."""
    yield server_of_all.made_ready()
    server_of_all.clear()


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
