"""A disk without a free byte, with all of Jupyter's folders on it: notebooks go on, only saves are refused."""

import os
import signal

import pytest

from jupyter_gpuckpt.client import Client
from jupyter_gpuckpt.wire import calls
from jupyter_gpuckpt.wire.daemon_settings import from_environment
from tests.conftest import end_everything_below, environment
from tests.full_disks import empty, fill, small_disk
from tests.programs import NOISE

LARGE = NOISE + "; x, data = 41, noise(5_000_000); print(x)"


@pytest.fixture
def daemon_env(criu, short_dir):
    """Yield the environment of a server and a daemon whose folders are on a small disk of their own."""
    home = short_dir / "home"
    with small_disk(home, short_dir / "image", megabytes=64):
        # Sockets are on another disk, as on most machines. Jupyter writes to its configuration, and IPython prints that its
        # history finds no room.
        elsewhere = {
            "JUPYTER_GPUCKPT_RUNTIME_DIR": "run",
            "IPYTHONDIR": "ipython",
            "JUPYTER_CONFIG_DIR": "config",
        }
        folders = {name: str(short_dir / folder) for name, folder in elsewhere.items()}
        yield {**environment(criu, home), **folders}
        end_everything_below(short_dir)


@pytest.fixture
def disk(daemon_env, short_dir, monkeypatch):
    """Return that disk; clients of this process connect to its daemon."""
    for name, value in daemon_env.items():
        monkeypatch.setenv(name, value)
    return short_dir / "home"


@pytest.mark.slow
def test_notebooks_go_on_while_the_disk_is_full(disk, own_server):
    server = own_server
    suspended, running = server.open("suspended.ipynb"), server.open("running.ipynb")
    suspended.run("y = 1")
    running.run(LARGE)
    server.do("suspend", suspended.kernel_id)
    fill(disk)
    assert running.run("for i in range(3000): print(i)") == "".join(f"{i}\n" for i in range(3000))
    new = server.open("new.ipynb")
    assert new.run("print(6 * 7)") == "42\n"
    # A cell resumes what is suspended.
    assert suspended.run("print(y + 1)") == "2\n"
    fill(disk)
    refused = server.finish(server.begin("save", running.kernel_id))
    assert refused["error"]["code"] == "store_full"
    # Server and daemon are killed, and come back on a disk that is as full.
    with Client.connect(from_environment()) as client:
        os.kill(client.send(calls.handshake()).pid, signal.SIGKILL)
    server.kill()
    fill(disk)
    server.start()
    assert {one["id"] for one in server.get("api/kernels")} == {
        page.kernel_id for page in (suspended, running, new)
    }
    assert server.page(running.kernel_id).run("print(x + 1)") == "42\n"
    assert server.open("newer.ipynb").run("print(6 * 7)") == "42\n"
    # The way out.
    empty(disk)
    server.do("save", running.kernel_id)
