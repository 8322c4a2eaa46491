"""A server that is killed or told to stop at a bad moment, alone or together with everything else."""

import contextlib
import os
import signal
import time
from pathlib import Path

import pytest
import websocket

from jupyter_gpuckpt.client import Client
from jupyter_gpuckpt.host import processes
from jupyter_gpuckpt.wire import calls
from jupyter_gpuckpt.wire.daemon_settings import from_environment
from tests.conftest import wait_for
from tests.parameters import some_slow
from tests.programs import NOISE

#: So much takes a save or a resume long enough to be in the middle of it.
LARGE = NOISE + "; x, data = 41, noise(200_000_000); print(len(data))"


@pytest.fixture
def server(clean_server):
    return clean_server


@pytest.fixture
def client(server, monkeypatch):
    """Yield a client that connects to the daemon as the command line does."""
    for name, value in server.env.items():
        monkeypatch.setenv(name, value)
    with Client.connect(from_environment()) as connected:
        yield connected


def wait_until_moving(server, kernel_id):
    """Until the operation in flight has stored or read some of the kernel's memory, or is over already."""
    deadline = time.monotonic() + 120
    while operation := server.kernel(kernel_id)["operation"]:
        if operation["progress"]["done_bytes"]:
            return
        assert time.monotonic() < deadline, operation


def steady_state(server, kernel_id):
    """Return the kernel's state when nothing is in flight any more."""
    steady = ("running", "suspended", "lost")
    return wait_for(lambda: (state := server.kernel(kernel_id)["state"]) in steady and state)


def works(server, kernel_id):
    """Whether it is what it was, after a resume if it is suspended."""
    if steady_state(server, kernel_id) == "suspended":
        server.do("resume", kernel_id)
    return server.page(kernel_id).run("print(x + 1)") == "42\n"


def test_a_stop_signal_to_every_process_at_once_saves_all_kernels(server, client):
    pages = [server.open(f"{number}.ipynb") for number in range(3)]
    for page in pages:
        page.run("x = 41; import os, threading, time")
    pages[0].run("threading.Thread(target=time.sleep, args=(1000,)).start()")
    pages[1].run("child = os.fork() or time.sleep(1000)")
    everything = [client.send(calls.handshake()).pid, server.process.pid]
    for pid in everything[:2]:
        everything += processes.descendants(pid)
    assert len(everything) >= 2 + 3 * 3 + 1
    for pid in everything:
        os.kill(pid, signal.SIGTERM)
    server.stop(signal.SIGTERM)
    assert {kernel.state for kernel in client.send(calls.kernels())} == {"suspended"}
    server.start()
    for page in pages:
        assert steady_state(server, page.kernel_id) == "suspended"
        assert works(server, page.kernel_id)


# That SIGINT stops a server as SIGTERM does is tested for one that does nothing, too.
@pytest.mark.parametrize(
    "how", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)]
)
def test_a_server_stopped_in_the_middle_of_a_save_suspends_the_kernel(server, how):
    page = server.open()
    page.run(LARGE)
    server.begin("save", page.kernel_id)
    wait_until_moving(server, page.kernel_id)
    server.stop(how)
    server.start()
    assert steady_state(server, page.kernel_id) == "suspended"
    assert works(server, page.kernel_id)


# A save is met by the test after this one, too, in which the daemon is killed with the server.
@pytest.mark.parametrize("verb", some_slow(["save", "suspend", "resume"], {"suspend"}))
def test_a_server_killed_in_the_middle_of_an_operation_costs_nothing(server, client, verb):
    page = server.open()
    page.run(LARGE)
    if verb == "resume":
        server.do("suspend", page.kernel_id)
    server.begin(verb, page.kernel_id)
    wait_until_moving(server, page.kernel_id)
    server.kill()
    server.start()
    assert steady_state(server, page.kernel_id) == {"suspend": "suspended"}.get(verb, "running")
    assert works(server, page.kernel_id)
    # The daemon went on with it by itself.
    snapshots = client.send(calls.snapshots(page.kernel_id))
    assert [info.reason for info in snapshots] == ["save" if verb == "save" else "suspend"]


def test_server_and_daemon_killed_together_in_a_save_cost_nothing(server, client):
    page = server.open()
    page.run(LARGE)
    server.begin("save", page.kernel_id)
    wait_until_moving(server, page.kernel_id)
    os.kill(client.send(calls.handshake()).pid, signal.SIGKILL)
    server.kill()
    server.start()
    assert steady_state(server, page.kernel_id) == "running"
    assert works(server, page.kernel_id)


#: The signal comes in the middle of a log line, where a second one raises (io.BufferedWriter: "reentrant call").
SIGNAL_WHILE_LOGGING = """
import logging, os, signal
emit = logging.StreamHandler.emit
inside = []
def emit_and_stop(handler, record):
    if inside:
        raise RuntimeError("reentrant call")
    inside.append(True)
    try:
        emit(handler, record)
        if record.getMessage().startswith("Connecting to kernel"):
            os.kill(os.getpid(), signal.SIGTERM)
            sum(range(1000))
    finally:
        inside.clear()
logging.StreamHandler.emit = emit_and_stop
"""


@pytest.mark.slow
def test_a_stop_signal_in_the_middle_of_a_log_line_is_not_lost(make_server, daemon_env):
    config = Path(daemon_env["JUPYTER_CONFIG_DIR"])
    config.mkdir(exist_ok=True)
    (config / "jupyter_server_config.py").write_text(SIGNAL_WHILE_LOGGING)
    server = make_server().start()
    kernel_id = server.request("POST", "api/kernels").json()["id"]
    with contextlib.suppress(AssertionError, OSError, websocket.WebSocketException):
        server.page(kernel_id)
    server.process.wait(180)
    (config / "jupyter_server_config.py").unlink()
    server.start()
    # One that was just answering its first question counts as busy, and goes on.
    assert server.kernel(kernel_id)["state"] in {"suspended", "resuming", "running"}


def test_two_servers_of_one_user_keep_their_own_kernels(make_server, tmp_path):
    servers, pages = [], []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        servers.append(make_server(folder=tmp_path / name).start())
        pages.append(servers[-1].open(f"{name}.ipynb"))
        pages[-1].run("x = 41")
    one, two = servers
    one.kill()
    two.get("api/sessions")
    one.start()
    for server, page in zip(servers, pages, strict=True):
        assert [kernel["id"] for kernel in server.get("api/kernels")] == [page.kernel_id]
        assert works(server, page.kernel_id)
    two.stop()
    one.stop()
    # The other way round, and with one that starts first in the other's place.
    two.start()
    assert [kernel["id"] for kernel in two.get("api/kernels")] == [pages[1].kernel_id]
    one.start()
    assert [kernel["id"] for kernel in one.get("api/kernels")] == [pages[0].kernel_id]
    assert works(one, pages[0].kernel_id)
    assert works(two, pages[1].kernel_id)
