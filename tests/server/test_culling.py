"""Idle kernels: suspended where Jupyter would shut them down, by Jupyter's own settings."""

import asyncio
import json
import socket
import sys
import time
from pathlib import Path

import pytest
from jupyter_client import BlockingKernelClient

from jupyter_gpuckpt.server.messages.probe import drained
from tests.conftest import wait_for
from tests.parameters import some_slow
from tests.programs import NOISE

# Tests with the same options follow each other, because one server then does for them.


@pytest.fixture
def culling(server_with):
    def start(*options, seconds=2, notice=0):
        settings = {"cull_idle_timeout": seconds, "cull_interval": 1}
        options = (f"--GpuCkptServer.idle_notice={notice}", *options)
        words = [f"--MappingKernelManager.{name}={value}" for name, value in settings.items()]
        return server_with(*words, *options)

    return start


def reaches(server, kernel_id, state):
    return wait_for(lambda: server.kernel(kernel_id)["state"] == state, said=server.log)


def snapshots(server, page):
    """Newest first."""
    return server.get(f"api/gpuckpt/snapshots?kernel_id={page.kernel_id}")["snapshots"]


def stays(server, kernel_id, state, seconds):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        assert server.kernel(kernel_id)["state"] in (state, "suspending")
        time.sleep(0.3)
    # A suspend may just have been begun, only to be refused.
    return reaches(server, kernel_id, state)


def test_an_idle_kernel_is_suspended_and_a_cell_brings_it_back(culling):
    server = culling()
    page = server.open()
    page.run("x = 41")
    page.close()
    assert reaches(server, page.kernel_id, "suspended")
    again = server.page(page.kernel_id)
    assert again.run("print(x + 1)") == "42\n"
    # With a page open it is left alone, as Jupyter leaves it (cull_connected is off).
    assert stays(server, page.kernel_id, "running", 5)


@pytest.mark.parametrize("busy_too", some_slow([True, False], {False}))
def test_a_busy_kernel_is_culled_only_if_jupyter_would_cull_it(culling, eventually, busy_too):
    busy = ["--MappingKernelManager.cull_busy=True"] if busy_too else []
    server = culling("--MappingKernelManager.cull_connected=True", *busy)
    page = server.open()
    page.run("import time; count = 0")
    page.execute("while True: count += 1; time.sleep(0.01)")
    if busy_too:
        assert reaches(server, page.kernel_id, "suspended")
    else:
        # Before the cell came it may have been idle for too long.
        eventually(lambda: server.get(f"api/kernels/{page.kernel_id}")["execution_state"] == "busy")
        assert reaches(server, page.kernel_id, "running")
        assert stays(server, page.kernel_id, "running", 6)


def test_a_kernel_that_has_just_been_resumed_is_not_idle(culling, eventually):
    server = culling("--MappingKernelManager.cull_connected=True")
    page = server.open()
    page.run("x = 41")
    assert reaches(server, page.kernel_id, "suspended")
    [before] = snapshots(server, page)
    time.sleep(2)
    began = time.time()
    server.do("resume", page.kernel_id)
    eventually(lambda: snapshots(server, page)[0]["snapshot_id"] != before["snapshot_id"])
    # Not before it had been idle for the two seconds again.
    assert snapshots(server, page)[0]["created"] >= began + 2
    assert reaches(server, page.kernel_id, "suspended")


#: A suspend waits for it until the file `go` exists; no operation of the daemon has begun then, but the gate is shut.
WAITING = """
import os, time
def wait():
    open("begun", "w").close()
    while not os.path.exists("go"): time.sleep(0.01)
get_ipython().events.register("on_save", wait)
"""


def test_an_idle_kernel_to_which_a_cell_was_sent_meanwhile_is_not_suspended(culling, eventually):
    server = culling("--MappingKernelManager.cull_connected=True")
    page = server.open()
    page.run(f"x = 41{WAITING}")
    eventually((server.root / "begun").exists)
    request = page.execute("print(x + 1)")
    page.reply(
        page.send("kernel_info_request", {})
    )  # answered in the kernel's name, after the cell was held
    (server.root / "go").touch()
    assert page.output(request) == "42\n"
    assert f"Idle kernel {page.kernel_id} runs on: A cell was sent" in server.log()


def test_a_cell_cancels_the_suspend_of_an_idle_kernel(culling, eventually):
    server = culling("--MappingKernelManager.cull_connected=True")
    page = server.open()
    page.run(NOISE + "; x = noise(250 << 20)")
    eventually(
        lambda: (
            (operation := server.kernel(page.kernel_id)["operation"])
            and operation["progress"]["stage"] == "store"
        )
    )
    assert page.run("print(len(x))") == f"{250 << 20}\n"
    assert f"suspend of kernel {page.kernel_id} cancelled" in server.log()


def test_a_kernel_that_began_a_cell_meanwhile_is_not_suspended(culling, eventually):
    server = culling("--MappingKernelManager.cull_connected=True")
    page = server.open()
    page.run(WAITING)
    eventually((server.root / "begun").exists)
    client = BlockingKernelClient()
    client.load_connection_file(
        str(Path(server.env["JUPYTER_RUNTIME_DIR"], f"kernel-{page.kernel_id}.json"))
    )
    client.start_channels(stdin=False, hb=False)  # a client that the gate does not hold up
    client.execute("while not os.path.exists('end'): time.sleep(0.01)")
    assert asyncio.run(drained([client.shell_port], 60))
    (server.root / "go").touch()
    eventually(lambda: f"Idle kernel {page.kernel_id} runs on: A cell was sent" in server.log())
    assert server.kernel(page.kernel_id)["state"] == "running"
    assert snapshots(server, page) == []
    (server.root / "end").touch()
    client.stop_channels()


def test_a_kernel_with_a_connection_is_left_alone_and_says_why(culling, eventually):
    server = culling("--MappingKernelManager.cull_connected=True")
    page = server.open()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        page.run(
            f"import socket; client = socket.create_connection(('127.0.0.1', {port}))",
        )
        eventually(lambda: server.kernel(page.kernel_id)["reason"])
        assert stays(server, page.kernel_id, "running", 3)
        view = eventually(lambda: (view := server.kernel(page.kernel_id))["reason"] and view)
        assert "network connections" in view["reason"]
        assert f"127.0.0.1:{port}" in view["reason"]
        assert view["hint"]
        # Somebody who asks for it gets it, and hears of them.
        done = server.do("suspend", page.kernel_id)
        assert "were cut" in done["result"]["warnings"][0]
    page.close()
    again = server.page(page.kernel_id)
    assert again.run("print(client.recv(1))") == "b''\n"


def test_an_open_page_is_told_before_and_can_keep_the_kernel_running(culling, eventually):
    server = culling("--MappingKernelManager.cull_connected=True", notice=3)
    page = server.open()
    page.run("x = 41")
    first = eventually(lambda: server.kernel(page.kernel_id)["suspends_at"])
    kept = server.request("POST", f"api/gpuckpt/kernels/{page.kernel_id}/keep_running").json()
    assert (kept["state"], kept["suspends_at"], kept["idle_seconds"]) == ("running", None, 2)
    second = eventually(lambda: server.kernel(page.kernel_id)["suspends_at"])
    # A notice, then two idle seconds, then a notice anew.
    assert second > first + 1
    page.run("x = 42")
    eventually(lambda: server.kernel(page.kernel_id)["suspends_at"] is None)
    assert snapshots(server, page) == []
    assert reaches(server, page.kernel_id, "suspended")


def test_idle_kernels_are_left_alone_where_no_cell_would_wake_them(culling):
    # As other extensions do it, to serve websockets in their own way.
    other = "jupyter_server.services.kernels.connection.base.BaseKernelWebsocketConnection"
    server = culling(f"--ServerApp.kernel_websocket_connection_class={other}")
    assert "automatic suspend is off" in server.log()
    kernel_id = server.request("POST", "api/kernels").json()["id"]
    assert reaches(server, kernel_id, "running")
    assert stays(server, kernel_id, "running", 5)
    server.do("suspend", kernel_id)
    server.do("resume", kernel_id)
    left = server.kernel(kernel_id)
    assert (left["state"], left["idle_seconds"]) == ("running", 0)


@pytest.mark.slow
def test_a_kernelspecs_own_timeout_counts(culling):
    server = culling(seconds=10000)
    folder = Path(server.env["JUPYTER_DATA_DIR"]) / "kernels" / "quick"
    folder.mkdir(parents=True)
    spec = {
        "argv": [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"],
        "display_name": "Quick",
        "language": "python",
        "metadata": {"cull_idle_timeout": 2},
    }
    (folder / "kernel.json").write_text(json.dumps(spec))
    slow, quick = server.open("slow.ipynb"), server.open("quick.ipynb", kernel="quick")
    for page in (slow, quick):
        page.run("x = 41")
        page.close()
    assert reaches(server, quick.kernel_id, "suspended")
    assert server.kernel(slow.kernel_id)["state"] == "running"
