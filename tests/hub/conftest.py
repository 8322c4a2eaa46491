"""A JupyterHub as a process of its own with a real proxy, and its users as they see it: through the proxy, with a token."""

import json
import os
import secrets
import signal
import subprocess
import threading
import time
from contextlib import suppress

import httpx
import pytest

from jupyter_gpuckpt.host import processes
from tests.conftest import missing, wait_for
from tests.ports import free_port
from tests.programs import python_module
from tests.server.conftest import NO_CERTIFICATES, Server
from tests.server.page import TIMEOUT

CONFIG = """
from jupyter_gpuckpt.hub import template_path, with_suspend

c.JupyterHub.spawner_class = with_suspend("simple")
c.JupyterHub.template_paths = [template_path]
"""

#: What every hub of the tests has beside that. Its REST interface answers before a server has started or stopped.
SURROUNDINGS = """
import json, os, sys
given = json.loads(os.environ["TEST_HUB"])
bin_dir = os.path.dirname(sys.executable)
c.JupyterHub.bind_url = f"http://127.0.0.1:{{given['port']}}"
c.JupyterHub.hub_bind_url = f"http://127.0.0.1:{{given['hub_port']}}"
c.JupyterHub.db_url = f"sqlite:///{{given['folder']}}/hub.sqlite"
c.JupyterHub.cookie_secret_file = f"{{given['folder']}}/cookie_secret"
c.ConfigurableHTTPProxy.command = [os.path.join(bin_dir, "configurable-http-proxy")]
c.ConfigurableHTTPProxy.api_url = f"http://127.0.0.1:{{given['proxy_port']}}"
c.ConfigurableHTTPProxy.pid_file = f"{{given['folder']}}/proxy.pid"
c.ConfigurableHTTPProxy.auth_token = given["secret"]
c.JupyterHub.authenticator_class = "dummy"
c.Authenticator.allow_all = True
c.Authenticator.admin_users = {{"ada"}}
c.JupyterHub.tornado_settings = {{"slow_spawn_timeout": 0.1, "slow_stop_timeout": 0.1}}
c.JupyterHub.services = [{{"name": "tests", "api_token": given["secret"]}}]
c.JupyterHub.load_roles = [
    {{
        "name": "tests",
        "services": ["tests"],
        "scopes": ["admin:users", "admin:servers", "admin:server_state", "tokens"],
    }}
]
c.Spawner.cmd = given["singleuser"]
c.Spawner.ip = "127.0.0.1"
c.Spawner.start_timeout = c.Spawner.http_timeout = 300
c.Spawner.environment = given["environment"]
# With jupyter_server 2.14 the first of these takes the place of what JupyterHub itself has enabled.
c.Spawner.args = ["--allow-root", "--ServerApp.jpserver_extensions=jupyterhub=True", *(
    f"--ServerApp.jpserver_extensions={{name}}=False"
    for name in (
        "jupyterlab", "jupyter_lsp", "jupyter_resource_usage", "jupyter_server_proxy", "notebook", "notebook_shim"
    )
)]
c.SimpleLocalProcessSpawner.home_dir_template = given["folder"] + "/home/{{username}}"
{more}
"""


class Hub:
    """A running hub; `stop` and `start` again keep its database and its users' homes."""

    #: What comes before the hub's command.
    prefix = ()

    def __init__(self, folder, env, more=""):
        self.folder, self.log_path = folder, folder / "hub.log"
        self.port, self.direct_port, proxy_port = (free_port() for _ in range(3))
        self.secret = secrets.token_hex(16)
        # Each user has a home and, as no other directory is named, data, daemon and snapshots of their own.
        environment = {
            "JUPYTERHUB_SINGLEUSER_APP": "jupyter-server",
            **{
                name: env[name]
                for name in (
                    "JUPYTER_GPUCKPT_RUNTIME_DIR",
                    "JUPYTER_GPUCKPT_CRIU",
                    "JUPYTER_GPUCKPT_IDLE_EXIT",
                )
            },
        }
        given = {
            "port": self.port,
            "hub_port": self.direct_port,
            "proxy_port": proxy_port,
            "folder": str(folder),
            "secret": self.secret,
            "environment": environment,
            "singleuser": python_module("jupyterhub.singleuser"),
        }
        self._env = {**env, "TEST_HUB": json.dumps(given)}
        self._env.pop("JUPYTER_GPUCKPT_DATA_DIR")
        self._config = folder / "jupyterhub_config.py"
        self.write_config(more)
        self.process = None

    def write_config(self, more=""):
        """Write the configuration of the next start, with these lines at its end."""
        self._config.write_text(CONFIG + SURROUNDINGS.format(more=more))

    def start(self):
        command = [*self.prefix, *python_module("jupyterhub"), "-f", str(self._config)]
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                command,
                cwd=self.folder,
                env=self._env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        deadline = time.monotonic() + TIMEOUT
        while True:
            try:
                self.api("GET", "")
                # The proxy leads to the hub.
                response = httpx.get(
                    f"http://127.0.0.1:{self.port}/hub/health",
                    timeout=TIMEOUT,
                    verify=NO_CERTIFICATES,
                )
                response.raise_for_status()
            except httpx.HTTPError:
                assert self.process.poll() is None, self.log()
                assert time.monotonic() < deadline, self.log()
                time.sleep(0.1)
            else:
                return self

    def stop(self, how=signal.SIGTERM, seconds=TIMEOUT):
        """End it and wait until it is gone; by SIGTERM it stops its users' servers."""
        left = processes.children(self.process.pid)
        self.process.send_signal(how)
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            pytest.fail(f"the hub does not end\n{self.log()}", pytrace=False)
        # Other tests may have made this process the parent of orphans; to a hub a zombie is a process that does not stop.
        threading.Thread(target=reap, args=(left,), daemon=True).start()

    def end(self):
        """Kill the hub, if it runs, and its proxy, which would outlive it.

        The users' servers are ended by the fixture of their engine.
        """
        if self.process is not None and self.process.poll() is None:
            left = processes.children(self.process.pid)
            self.stop(signal.SIGKILL)
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def log(self):
        return self.log_path.read_text(errors="replace")[-8000:]

    def api(self, method, path, token="", **arguments):
        """Ask the hub's REST interface, by default as a service that may everything the tests need."""
        response = httpx.request(
            method,
            f"http://127.0.0.1:{self.port}/hub/api/{path}",
            headers={"Authorization": f"token {token or self.secret}"},
            timeout=TIMEOUT,
            verify=NO_CERTIFICATES,
            **arguments,
        )
        response.raise_for_status()
        return response

    def user(self, name):
        """Return a user, with a token that has all of the user's rights."""
        if name != "ada":
            self.api("POST", f"users/{name}")
        token = self.api("POST", f"users/{name}/tokens", json={"note": "tests"}).json()["token"]
        return UserServer(self, name, token)


class UserServer(Server):
    """A user's server, as the user sees it."""

    def __init__(self, hub, name, token):
        self.hub, self.name, self.token = hub, name, token
        self.port, self.base, self.pages = hub.port, f"user/{name}/", []
        self.home = hub.folder / "home" / name

    def log(self):
        return self.hub.log()

    def start(self):
        """Start it as the user does; gives what the page of the start shows."""
        self.hub.api("POST", f"users/{self.name}/server", self.token)
        # Not by the proxy, which ends a request after 20 s.
        with httpx.stream(
            "GET",
            f"http://127.0.0.1:{self.hub.direct_port}/hub/api/users/{self.name}/server/progress",
            headers={"Authorization": f"token {self.token}"},
            timeout=TIMEOUT,
            verify=NO_CERTIFICATES,
        ) as response:
            lines = [line for line in response.iter_lines() if line.startswith("data:")]
        shown = [json.loads(line.removeprefix("data:")) for line in lines]
        assert shown[-1].get("ready"), f"{shown}\n{self.log()}"
        # The proxy learns of it a moment later.
        self._wait(lambda: self.request("GET", "api/status", ok=False).is_success)
        return [event["message"] for event in shown]

    def wait_until_started(self):
        self._wait(lambda: (self.model or {}).get("ready"))
        self._wait(lambda: self.request("GET", "api/status", ok=False).is_success)

    @property
    def model(self):
        """What the hub says of the server; None when there is none."""
        return self.hub.api("GET", f"users/{self.name}").json()["servers"].get("")

    def stop(self, token=""):
        """Stop it, by default as the user does; waits until it is gone."""
        self.begin_stop(token)
        self.wait_until_stopped()

    def close_pages(self):
        for page in self.pages:
            page.close()
        self.pages = []

    def begin_stop(self, token=""):
        self.close_pages()
        self.hub.api("DELETE", f"users/{self.name}/server", token or self.token)

    def wait_until_stopped(self):
        self._wait(lambda: self.model is None)

    def daemon_log(self):
        path = self.home / ".local/share/jupyter-gpuckpt/log/gpuckptd.log"
        return path.read_text(errors="replace")

    def _wait(self, condition):
        wait_for(condition, TIMEOUT, self.log)


def reap(pids):
    """Wait for the end of those that are, or become, children of this process."""
    while pids := [pid for pid in pids if processes.exists(pid)]:
        for pid in pids:
            with suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        time.sleep(0.05)


@pytest.fixture
def make_hub(daemon_env, short_dir):
    """Start hubs, with lines of configuration of their own."""
    try:
        import configurable_http_proxy  # noqa: F401, PLC0415 - only asked for
        import jupyterhub  # noqa: F401, PLC0415 - the same
    except ImportError as error:
        missing("hub", f"JupyterHub and a proxy are in the extra `test`: {error}")
    made = []

    def make(more=""):
        made.append(Hub(short_dir, daemon_env, more))
        return made[-1].start()

    yield make
    for hub in made:
        if hub.process.poll() is None:
            # Its servers are ended with everything else of this directory.
            hub.stop(signal.SIGKILL)


@pytest.fixture
def hub(make_hub):
    """Return a started hub."""
    return make_hub()
