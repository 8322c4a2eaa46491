"""What wakes a suspended kernel, what is answered in its place, and what is said when it cannot be woken."""

import json
import os
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest
import websocket

from jupyter_gpuckpt.client import Client
from jupyter_gpuckpt.wire import calls
from tests.conftest import wait_for
from tests.programs import NOISE


@pytest.fixture
def server(clean_server):
    return clean_server


@pytest.fixture
def suspended(server):
    """Return a page of a kernel that is suspended; `x` is 41 in it."""
    page = server.open("notebook.ipynb")
    page.run("x = 41")
    server.do("suspend", page.kernel_id)
    return page


def test_a_cell_brings_the_kernel_back(server, suspended):
    assert suspended.run("x += 1; print(x)") == "42\n"
    assert server.kernel(suspended.kernel_id)["state"] == "running"


def test_cells_of_several_pages_run_once_each_and_in_their_order(server, suspended):
    other = server.page(suspended.kernel_id, binary=True)
    suspended.execute("order = []")
    requests = []
    for number in range(10):
        requests.append((suspended, suspended.execute(f"order.append({number})")))
        requests.append((other, other.execute("x += 1")))
    for page, request in requests:
        page.reply(request)
    assert suspended.run("print(order, x)") == f"{list(range(10))} 51\n"


def test_looking_at_a_notebook_wakes_nothing(server, suspended):
    pages = [server.page(suspended.kernel_id, binary=bool(number % 2)) for number in range(20)]
    for page in pages:
        for kind, content, expected in (
            ("kernel_info_request", {}, "ok"),
            ("comm_info_request", {"target_name": "jupyter.widget"}, "ok"),
            ("complete_request", {"code": "x.", "cursor_pos": 2}, "ok"),
            ("inspect_request", {"code": "x", "cursor_pos": 1, "detail_level": 0}, "ok"),
        ):
            assert page.reply(page.send(kind, content))["content"]["status"] == expected
        page.send("history_request", {"hist_access_type": "tail", "n": 1})
    time.sleep(1)
    assert server.kernel(suspended.kernel_id)["state"] == "suspended"


def test_a_cell_sent_while_the_kernel_is_being_suspended_runs_afterwards(server):
    page = server.open()
    page.run(NOISE + "; x, data = 41, noise(200_000_000)")
    operation = server.begin("suspend", page.kernel_id)
    held = page.execute("x += 1; print(x)")
    assert server.finish(operation)["state"] == "succeeded"
    assert page.output(held) == "42\n"


SLOW_PREPARATION = """
import pathlib, time
agent = get_ipython().kernel.control_handlers["gpuckpt_request"].__self__
prepare = agent._prepare
def slowly():
    pathlib.Path("begun").touch()
    time.sleep(1)
    prepare()
agent._prepare = slowly
"""


def test_a_cell_sent_before_the_kernel_is_known_to_be_suspended_runs_afterwards(server):
    page = server.open()
    page.run(SLOW_PREPARATION)
    with ThreadPoolExecutor(1) as threads:
        operation = threads.submit(server.begin, "suspend", page.kernel_id)
        while not (server.root / "begun").exists():
            time.sleep(0.01)
        held = page.execute("print(42)")
        assert server.finish(operation.result())["state"] == "succeeded"
    assert page.output(held) == "42\n"


def test_a_kernel_that_cannot_come_back_says_why_and_stays_suspended(server):
    folder = server.root / "folder"
    folder.mkdir()
    page = server.open("folder/notebook.ipynb")
    page.run("x = 41")
    server.do("suspend", page.kernel_id)
    folder.rename(server.root / "aside")
    for _ in range(2):
        held = page.execute("print(x)")
        reply = page.reply(held)["content"]
        assert reply["status"] == "error"
        assert "working directory" in reply["evalue"]
        assert "Put the missing files back" in reply["evalue"]
        shown = [m for m in page.received if m["msg_type"] == "error"]
        assert shown[-1]["parent_header"]["msg_id"] == held
        assert server.kernel(page.kernel_id)["state"] == "suspended"
    (server.root / "aside").rename(folder)
    assert page.run("print(x)") == "41\n"


def test_what_waits_does_not_wake_a_kernel_when_its_server_stops(server, monkeypatch):
    for name, value in server.env.items():
        monkeypatch.setenv(name, value)
    page = server.open()
    page.run(NOISE + "; x, data = 41, noise(200_000_000)")
    server.process.send_signal(signal.SIGTERM)
    with Client.connect() as client:
        # It answers no requests any more, but websockets are still open, unless all is over already.
        gone = {"suspending", "suspended"}
        wait_for(lambda: client.send(calls.kernel(page.kernel_id)).state in gone)
    with suppress(OSError, websocket.WebSocketException):
        page.execute("x = 0")
    server.stop(signal.SIGTERM)
    server.start()
    assert server.kernel(page.kernel_id)["state"] == "suspended"
    assert server.page(page.kernel_id).run("print(x)") == "41\n"


ECHO = """
from ipykernel.kernelapp import IPKernelApp
from ipykernel.kernelbase import Kernel

class Echo(Kernel):
    implementation = language = "echo"
    implementation_version = banner = "1"
    language_info = {"name": "echo", "mimetype": "text/plain", "file_extension": ".txt"}
    lines = []

    def do_execute(self, code, silent, *arguments, **options):
        self.lines.append(code)
        text = " ".join(self.lines) + "\\n"
        self.send_response(self.iopub_socket, "stream", {"name": "stdout", "text": text})
        return {"status": "ok", "execution_count": len(self.lines), "payload": [], "user_expressions": {}}

IPKernelApp.launch_instance(kernel_class=Echo)
"""


def test_a_kernel_of_another_kind_is_suspended_and_woken_as_well(server):
    folder = Path(server.env["JUPYTER_DATA_DIR"]) / "kernels" / "echo"
    folder.mkdir(parents=True)
    spec = {
        "argv": [sys.executable, "-c", ECHO, "-f", "{connection_file}"],
        "display_name": "Echo",
        "language": "echo",
    }
    (folder / "kernel.json").write_text(json.dumps(spec))
    page = server.open("echo.ipynb", kernel="echo")
    assert page.run("one") == "one\n"
    server.do("suspend", page.kernel_id)
    assert page.run("two") == "one two\n"


def test_an_interrupt_of_a_kernel_suspended_in_a_cell_brings_it_back_and_ends_the_cell(server):
    page = server.open()
    # More than once: a reply that comes before the page is connected again would be lost now and then, not every time.
    for _ in range(2):
        request = page.execute(
            "import time\ntry:\n    time.sleep(1000)\nexcept KeyboardInterrupt:\n    print('stopped')"
        )
        page.wait_for(
            lambda m, request=request: (
                m["msg_type"] == "execute_input" and m["parent_header"].get("msg_id") == request
            )
        )
        server.do("suspend", page.kernel_id)
        path = f"api/kernels/{page.kernel_id}/interrupt"
        assert server.request("POST", path).status_code == 204
        assert page.output(request) == "stopped\n"
        assert server.kernel(page.kernel_id)["state"] == "running"


def test_an_interrupt_of_a_kernel_that_is_being_suspended_ends_the_cell(server):
    page = server.open()
    page.run(NOISE + "; data = noise(100_000_000)")  # so that the suspend takes a while
    request = page.execute(
        "import time\ntry:\n    time.sleep(1000)\nexcept KeyboardInterrupt:\n    print('stopped')"
    )
    page.wait_for(
        lambda m: m["msg_type"] == "execute_input" and m["parent_header"].get("msg_id") == request
    )
    operation = server.begin("suspend", page.kernel_id)
    wait_for(lambda: server.kernel(page.kernel_id)["state"] == "suspending")
    assert server.request("POST", f"api/kernels/{page.kernel_id}/interrupt").status_code == 204
    assert page.output(request) == "stopped\n"
    assert server.finish(operation)["state"] == "succeeded"


def test_a_cell_waits_for_a_daemon_that_is_being_replaced(server, monkeypatch):
    for name, value in server.env.items():
        monkeypatch.setenv(name, value)
    page = server.open()
    page.run("x = 1")
    server.do("suspend", page.kernel_id)
    with Client.connect() as client:
        os.kill(client.send(calls.handshake()).pid, signal.SIGKILL)
    assert page.run("print(x)") == "1\n"


def test_a_cell_runs_that_comes_while_somebody_else_resumes_the_kernel(
    server, suspended, monkeypatch
):
    """Run it even where this server learns of that resume only by the daemon's refusal of its own."""
    for name, value in server.env.items():
        monkeypatch.setenv(name, value)
    for again in (True, True, False):
        server.process.send_signal(signal.SIGSTOP)
        try:
            with Client.connect() as client:
                operation = client.send(calls.resume(suspended.kernel_id, ""))
            held = suspended.execute("print(x)")
        finally:
            server.process.send_signal(signal.SIGCONT)
        assert suspended.output(held) == "41\n"
        assert server.finish(msgspec.to_builtins(operation))["state"] == "succeeded"
        if again:
            server.do("suspend", suspended.kernel_id)
