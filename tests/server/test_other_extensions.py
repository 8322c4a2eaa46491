"""Other server extensions that talk to a suspended kernel: each gets an answer at once, and a cell resumes the kernel."""

import time
from pathlib import Path

import pytest

#: Far less than other extensions wait for a kernel, and far more than an answer takes.
AT_ONCE = 5.0
CLIENTS = "--ServerApp.jpserver_extensions=tests.server.in_server_clients=True"
USAGE = "--ServerApp.jpserver_extensions=jupyter_resource_usage=True"


@pytest.fixture
def server(server_with):
    root = str(Path(__file__).parents[2])
    return server_with(CLIENTS, USAGE, env={"PYTHONPATH": root})


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
    assert page.run("print(x)") == "42\n"
