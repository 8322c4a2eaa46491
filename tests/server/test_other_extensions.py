"""Other server extensions that talk to a suspended kernel: each gets an answer at once, and a cell resumes the kernel."""

import os
import time
from pathlib import Path

import httpx
import pytest

from tests.ports import unused_port
from tests.server.conftest import NO_CERTIFICATES
from tests.server.page import TIMEOUT

#: Far less than other extensions wait for a kernel, and far more than an answer takes.
AT_ONCE = 5.0
ROOT = str(Path(__file__).parents[2])
CLIENTS = "--ServerApp.jpserver_extensions=tests.server.in_server_clients=True"
PROXY = "--ServerApp.jpserver_extensions=jupyter_server_proxy=True"
USAGE = "--ServerApp.jpserver_extensions=jupyter_resource_usage=True"


@pytest.fixture
def server(server_with):
    return server_with(CLIENTS, PROXY, USAGE, env={"PYTHONPATH": ROOT})


@pytest.fixture
def page(server):
    return server.open()


def timed(ask):
    began = time.monotonic()
    answer = ask()
    return answer, time.monotonic() - began


def client(server, kernel_id, **query):
    asked = server.request("GET", f"tests/client/{kernel_id}", params=query)
    return asked.json()


def usage(server, kernel_id):
    return server.get(f"api/metrics/v1/kernel_usage/get_usage/{kernel_id}")["content"]


def test_resource_usage_shows_at_once_that_a_kernel_is_suspended(server, page):
    page.run("x = 1")
    assert "kernel_cpu" in usage(server, page.kernel_id)
    server.do("suspend", page.kernel_id)
    content, seconds = timed(lambda: usage(server, page.kernel_id))
    assert seconds < AT_ONCE
    # Its panel says "Kernel usage not available. Reason: ...".
    assert content["reason"].startswith("The kernel is suspended.")
    assert server.kernel(page.kernel_id)["state"] == "suspended"
    server.do("resume", page.kernel_id)
    assert "kernel_cpu" in usage(server, page.kernel_id)


def test_a_request_of_a_client_gets_an_error_at_once(server, page):
    server.do("suspend", page.kernel_id)
    answer, seconds = timed(lambda: client(server, page.kernel_id, kind="history_request"))
    assert seconds < AT_ONCE
    assert answer["reply"]["msg_type"] == "history_reply"
    assert answer["reply"]["content"]["status"] == "error"
    assert answer["reply"]["content"]["ename"] == "KernelSuspended"
    assert server.kernel(page.kernel_id)["state"] == "suspended"


def test_a_cell_of_a_client_resumes_the_kernel_and_its_output_is_complete(server, page):
    page.run("x = 41")
    server.do("suspend", page.kernel_id)
    code = "for i in range(3): print(i)\nx += 1; print(x)"
    answer = client(server, page.kernel_id, code=code)
    assert answer["reply"]["content"]["status"] == "ok"
    assert answer["printed"] == "0\n1\n2\n42\n"
    server.do("suspend", page.kernel_id)
    assert client(server, page.kernel_id, code="print(input())")["printed"] == "typed\n"
    assert page.run("print(x)") == "42\n"


APP = """
import http.server, socket, threading
class App(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"the app")
    do_POST = do_GET
    def log_message(self, *args):
        pass
app = http.server.ThreadingHTTPServer(("127.0.0.1", 0), App)
threading.Thread(target=app.serve_forever, daemon=True).start()
print(app.server_port)
"""


def fetch(server, path, method="GET", accept="text/html", **headers):
    """Send a request as an app's page does; `headers` replace the user's token."""
    headers = headers or {"Authorization": f"token {server.token}"}
    url = f"http://127.0.0.1:{server.port}/{path}"
    return httpx.request(
        method, url, headers={"Accept": accept, **headers}, timeout=TIMEOUT, verify=NO_CERTIFICATES
    )


@pytest.fixture
def port(page):
    return int(page.run(APP))


@pytest.mark.parametrize("place", ["{port}", "absolute/{port}", "localhost:{port}"])
def test_an_app_of_a_suspended_kernel_says_so(server, page, port, place):
    path = f"proxy/{place.format(port=port)}/page?a=b"
    assert fetch(server, path).text == "the app"
    server.do("suspend", page.kernel_id)
    shown = fetch(server, path)
    assert shown.status_code == 503
    assert int(shown.headers["Retry-After"]) > 0
    assert "text/html" in shown.headers["Content-Type"]
    assert "the kernel of notebook.ipynb, which is suspended" in shown.text
    for method in ("GET", "POST", "DELETE"):
        plain = fetch(server, path, method, accept="*/*")
        assert plain.status_code == 503
        assert plain.text.startswith("This app runs in the kernel of notebook.ipynb")
    assert server.kernel(page.kernel_id)["state"] == "suspended"
    server.do("resume", page.kernel_id)
    assert fetch(server, path).text == "the app"


def test_only_users_of_the_server_are_told_of_an_app(server, page, port):
    server.do("suspend", page.kernel_id)
    for method in ("GET", "POST"):
        refused = fetch(server, f"proxy/{port}/", method, Cookie="none=0")
        assert refused.status_code in (302, 403)
        assert "notebook.ipynb" not in refused.text


def test_another_program_may_use_the_port_of_an_app_meanwhile(server, page, port):
    server.do("suspend", page.kernel_id)
    second = server.open("second.ipynb")
    second.run(
        APP.replace('("127.0.0.1", 0)', f'("127.0.0.1", {port})').replace("the app", "second")
    )
    assert fetch(server, f"proxy/{port}/").text == "second"


def test_the_next_server_answers_as_the_first_one(server, page, port):
    server.do("suspend", page.kernel_id)
    server.stop()
    server.start()
    assert usage(server, page.kernel_id)["reason"].startswith("The kernel is suspended.")
    assert fetch(server, f"proxy/{port}/").status_code == 503


def test_a_port_that_no_kernel_used_is_left_to_the_proxy(server, page):
    server.do("suspend", page.kernel_id)
    assert fetch(server, f"proxy/{unused_port()}/").status_code == 500


def test_a_client_that_lives_on_is_served_as_a_new_one(server, page):
    assert client(server, page.kernel_id, keeps=1, code="x = 1; print(x)")["printed"] == "1\n"
    for number in (2, 3):
        server.do("suspend", page.kernel_id)
        answer, seconds = timed(
            lambda: client(server, page.kernel_id, keeps=1, kind="usage_request")
        )
        assert seconds < AT_ONCE
        assert answer["reply"]["content"]["ename"] == "KernelSuspended"
        answer = client(server, page.kernel_id, keeps=1, code="x += 1; print(x)")
        assert answer["printed"] == f"{number}\n"
    answer = client(server, page.kernel_id, code="for i in range(20_000): print(i)")
    assert answer["printed"] == "".join(f"{i}\n" for i in range(20_000))


@pytest.mark.parametrize(
    "option",
    ["--KernelManager.transport=ipc", "--KernelManager.transport_encryption=required"],
)
def test_clients_of_kernels_that_are_reached_otherwise_are_served_too(server_with, option):
    server = server_with(CLIENTS, option, env={"PYTHONPATH": ROOT})
    page = server.open()
    page.run("x = 41")
    server.do("suspend", page.kernel_id)
    assert client(server, page.kernel_id, kind="usage_request")["reply"]["content"]["reason"]
    answer = client(server, page.kernel_id, code="print(x + 1)")
    assert answer["printed"] == "42\n"
    assert client(server, page.kernel_id, code="print(x + 2)")["printed"] == "43\n"


def test_a_cell_of_a_client_fails_if_the_kernel_cannot_be_resumed(server, page):
    used = server.root / "used"
    used.write_text("something")
    page.run("import mmap; used = open('used', 'rb'); mapped = mmap.mmap(used.fileno(), 0, prot=1)")
    server.do("suspend", page.kernel_id)
    used.unlink()
    answer = client(server, page.kernel_id, code="print(mapped[:])")
    content = answer["reply"]["content"]
    assert (content["status"], content["ename"]) == ("error", "KernelNotResumed")
    used.write_text("something")
    answer = client(server, page.kernel_id, code="print(mapped[:])")
    assert answer["printed"] == "b'something'\n"


def test_clients_leave_nothing_open(server, page, eventually):
    def open_files():
        return len(os.listdir(f"/proc/{server.process.pid}/fd"))

    server.do("suspend", page.kernel_id)
    usage(server, page.kernel_id)
    page.close()
    before = open_files()
    for _ in range(10):
        usage(server, page.kernel_id)
    # What the first one used has ended by then, too.
    eventually(lambda: open_files() <= before)
