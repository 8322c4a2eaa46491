"""Ready copies of a template: they wait stopped, are in no list, become the next notebook's kernel, and leave nothing behind."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from jupyter_gpuckpt.client import Client
from jupyter_gpuckpt.host import processes
from jupyter_gpuckpt.wire import calls
from tests.conftest import wait_for

from .conftest import Server

TEMPLATE = [sys.executable, "-m", "jupyter_gpuckpt.cli", "template"]


def run(server, *words):
    done = subprocess.run(
        [*TEMPLATE, *words],
        env=server.env,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture
def server(daemon_env, short_dir, monkeypatch):
    """Yield a server that keeps one copy of the template `ready` ready."""
    for name, value in daemon_env.items():
        monkeypatch.setenv(name, value)
    server = Server(short_dir, daemon_env, '--GpuCkptServer.ready_kernels={"ready": 1}')
    (short_dir / "recipe.py").write_text("import numpy as np\ndata = np.arange(10)\n")
    run(server, "create", "ready", "--from", str(short_dir / "recipe.py"))
    yield server.start()
    server.kill()


def waiting(server):
    """Return the inits of the copies that are ready: the daemon's log names them, and their kernels' processes stand still."""
    log = Path(server.env["JUPYTER_GPUCKPT_DATA_DIR"]) / "log" / "gpuckptd.log"
    named = re.findall(r"is ready as process (\d+)$", log.read_text(), re.M)
    return [
        pid
        for pid in map(int, named)
        if any(processes.state(one) == "T" for one in processes.descendants(pid))
    ]


def is_gone(pid):
    return processes.state(pid) in {None, "Z"}


def one_waits(server, but=()):
    wait_for(lambda: set(waiting(server)) - set(but), said=server.log)
    [init] = set(waiting(server)) - set(but)
    return init


def ask(call):
    with Client.connect() as client:
        return client.send(call)


def init_of(kernel_id):
    return ask(calls.kernel(kernel_id)).init_pid


FACTS = "import os; print(data.sum(), os.getcwd(), os.environ['JPY_SESSION_NAME'], len(In))"


def test_a_ready_copy_becomes_the_next_kernel(server):
    init = one_waits(server)
    assert server.get("api/gpuckpt/kernels")["kernels"] == []
    assert ask(calls.kernels()) == []
    page = server.open("first.ipynb", kernel="ready")
    assert init_of(page.kernel_id) == init
    printed = page.run(FACTS).split()
    assert printed[:2] == ["45", str(server.root)]
    assert printed[2].endswith("first.ipynb")
    assert printed[3] == "2"
    # Another one takes its place, for the next notebook.
    other = one_waits(server, but=[init])
    page.run("data[0] = 100")
    second = server.open("second.ipynb", kernel="ready")
    assert init_of(second.kernel_id) == other
    assert second.run("print(data.sum())") == "45\n"
    assert page.run("print(data.sum())") == "145\n"
    # A restart keeps its ports, so it is a copy that was made for it.
    third = one_waits(server, but=[init, other])
    server.request("POST", f"api/kernels/{page.kernel_id}/restart")
    assert page.run(FACTS).split()[0] == "45"
    assert init_of(page.kernel_id) not in {init, other, third}
    # It is suspended, resumed and adopted as any kernel is.
    second.run("data[0] = 100")
    server.do("suspend", second.kernel_id)
    server.do("resume", second.kernel_id)
    assert second.run("print(data.sum())") == "145\n"
    server.kill()
    server.start()
    wait_for(lambda: any(k["id"] == page.kernel_id for k in server.get("api/kernels")))
    assert server.page(page.kernel_id).run("print(data.sum())") == "45\n"
    assert "is no copy" not in server.log()


@pytest.mark.slow
def test_nothing_is_left_of_ready_copies(server):
    init = one_waits(server)
    # A template that is built again: the old copy goes, another one comes.
    run(server, "rebuild", "ready")
    newer = one_waits(server, but=[init])
    wait_for(lambda: is_gone(init))
    # A kernel that was a ready copy is found by the next daemon even if its record is gone; those that still wait are not kept.
    page = server.open("kept.ipynb", kernel="ready")
    assert init_of(page.kernel_id) == newer
    page.run("data[0] = 100")
    waits = one_waits(server, but=[newer])
    data = Path(server.env["JUPYTER_GPUCKPT_DATA_DIR"])
    record = data / "state" / "kernels" / page.kernel_id / "record.json"
    daemon = ask(calls.handshake()).pid
    record.unlink()
    os.kill(daemon, signal.SIGKILL)
    newer = one_waits(server, but=[newer, waits])
    assert is_gone(waits)
    assert page.run("print(data.sum())") == "145\n"
    assert ask(calls.kernel(page.kernel_id)).state == "running"
    # A killed daemon: the server starts the next one, which removes what is left.
    os.kill(ask(calls.handshake()).pid, signal.SIGKILL)
    third = one_waits(server, but=[newer])
    assert is_gone(newer)
    # A removed template.
    run(server, "rm", "ready")
    wait_for(lambda: is_gone(third))
    # The end of the server.
    run(server, "create", "ready", "--from", str(server.root.parent / "recipe.py"))
    last = one_waits(server)
    server.stop()
    wait_for(lambda: is_gone(last))
