"""A daemon that runs but does not answer: nothing is lost, nothing is started twice, and everybody is told."""

import os
import signal
import time

import pytest

from jupyter_gpuckpt.client import Client
from jupyter_gpuckpt.wire import calls
from jupyter_gpuckpt.wire.daemon_settings import from_environment
from tests.conftest import wait_for
from tests.server.page import TIMEOUT

#: What took 100 seconds and more.
FEW_SECONDS = 40.0


@pytest.fixture
def server(clean_server):
    return clean_server


@pytest.fixture
def daemon(server, monkeypatch):
    """Yield the pid of the daemon, which runs on after the test."""
    for name, value in server.env.items():
        monkeypatch.setenv(name, value)
    with Client.connect(from_environment()) as client:
        pid = client.send(calls.handshake()).pid
    yield pid
    os.kill(pid, signal.SIGCONT)


def start_session(server, path):
    body = {"path": path, "name": path, "type": "notebook", "kernel": {"name": "python3"}}
    return server.request("POST", "api/sessions", json=body, ok=False)


@pytest.mark.slow
def test_a_server_lists_its_kernels_when_a_silent_daemon_answers_again(server, daemon):
    page = server.open("a.ipynb")
    page.run("x = 41")
    (session,) = server.get("api/sessions")
    os.kill(daemon, signal.SIGSTOP)
    began = time.monotonic()
    server.stop()
    stopped = time.monotonic()
    server.start()
    assert stopped - began < FEW_SECONDS
    assert time.monotonic() - stopped < FEW_SECONDS
    # Its notebook gets no second kernel; the page is told why, and how it goes on.
    refused = start_session(server, "a.ipynb")
    assert not refused.is_success
    assert page.kernel_id in refused.text
    assert f"kill -CONT {daemon}" in refused.text
    assert server.get("api/kernels") == []
    status, error = server.refused("GET", "snapshots")
    assert (status, error["code"]) == (503, "daemon_silent")
    os.kill(daemon, signal.SIGCONT)
    wait_for(lambda: server.get("api/sessions"), TIMEOUT, said=server.log)
    assert server.get("api/sessions")[0]["id"] == session["id"]
    assert server.page(page.kernel_id, session["id"]).run("print(x + 1)") == "42\n"
    assert len(server.get("api/kernels")) == 1


def test_cells_run_while_the_daemon_is_silent_and_nothing_is_started_twice(server, daemon):
    page = server.open("a.ipynb")
    page.run("x = 41")
    os.kill(daemon, signal.SIGSTOP)
    assert page.run("print(x + 1)") == "42\n"
    # What the user asks says so, and the page shows it as soon as the server has noticed.
    refused = server.request("POST", f"api/kernels/{page.kernel_id}/restart", ok=False)
    assert not refused.is_success
    wait_for(
        lambda: "does not answer" in (server.kernel(page.kernel_id)["reason"] or ""),
        TIMEOUT,
        said=server.log,
    )
    assert page.run("print(x + 1)") == "42\n"
    os.kill(daemon, signal.SIGCONT)
    wait_for(lambda: server.kernel(page.kernel_id)["reason"] is None, TIMEOUT, said=server.log)
    server.do("suspend", page.kernel_id)
    assert page.run("print(x + 1)") == "42\n"


@pytest.mark.slow  # Jupyter waits for a cell that does not end
def test_a_kernel_that_was_shut_down_meanwhile_ends_when_the_daemon_answers(server, daemon):
    page = server.open("a.ipynb")
    page.run("import time")
    page.execute("while True: time.sleep(1)")
    (session,) = server.get("api/sessions")
    os.kill(daemon, signal.SIGSTOP)
    server.request("DELETE", f"api/sessions/{session['id']}")
    assert server.get("api/kernels") == []
    os.kill(daemon, signal.SIGCONT)
    with Client.connect(from_environment()) as client:
        wait_for(lambda: client.send(calls.kernels()) == [], TIMEOUT, said=server.log)
    assert server.open("a.ipynb").run("print(6 * 7)") == "42\n"
