"""A kernel gives its GPU to others while nobody runs a cell, and the next cell finds everything as it was."""

from __future__ import annotations

import os
import signal
import time
from functools import partial

import pytest

from jupyter_gpuckpt.client import Client
from jupyter_gpuckpt.host import gpu
from jupyter_gpuckpt.wire import calls
from tests.conftest import wait_for
from tests.server.conftest import make_server  # noqa: F401 - a fixture

pytestmark = pytest.mark.gpu

SETUP = """
import os, torch
big = torch.arange(1 << 28, device="cuda", dtype=torch.int32)  # 1 GB
torch.cuda.synchronize()
print(os.getpid())
"""
CHECK = "print(int(big[12345]), int(big.sum(dtype=torch.int64)))"
EXPECTED = f"12345 {(1 << 28) * ((1 << 28) - 1) // 2}\n"


wait_for = partial(wait_for, seconds=60)


def used():
    """Bytes of the first GPU."""
    return gpu.gpus()[0].memory_bytes - next(iter(gpu.free_bytes().values()))


@pytest.fixture
def started(make_server):  # noqa: F811
    """Return a server, a page with 1 GB on the GPU, and what the GPU held before."""
    pytest.importorskip("torch")
    if not gpu.gpus():
        pytest.skip("there is no GPU here")

    def start(*options):
        server = make_server(*options).start()
        page = server.open()
        before = used()
        page.run(SETUP)
        assert used() - before > 1 << 30
        return server, page, before

    return start


def test_a_parked_kernel_frees_the_gpu_and_its_next_cell_unparks_it(started):
    server, page, before = started()
    pid = page.run("print(os.getpid())")
    for _ in range(2):
        began = time.monotonic()
        operation = server.do("park", page.kernel_id)
        print(f"parked in {time.monotonic() - began:.2f} s: {operation['progress']}")
        assert operation["result"]["gpu_bytes"] > 1 << 30
        assert server.kernel(page.kernel_id)["state"] == "parked"
        assert used() - before < 100 << 20
        # Looking needs no GPU.
        page.wait_for(lambda m: m["msg_type"] == "execute_reply")
        info = page.send("kernel_info_request", {})
        page.wait_for(
            lambda m, info=info: (
                m["msg_type"] == "kernel_info_reply" and m["parent_header"]["msg_id"] == info
            )
        )
        assert server.kernel(page.kernel_id)["state"] == "parked"
        began = time.monotonic()
        assert page.run(CHECK) == EXPECTED
        print(f"first cell after {time.monotonic() - began:.2f} s")
        assert server.kernel(page.kernel_id)["state"] == "running"
    assert page.run("print(os.getpid())") == pid


def test_a_parked_kernel_is_saved_suspended_and_resumed_as_it_is(started):
    server, page, before = started()
    server.do("park", page.kernel_id)
    saved = server.do("save", page.kernel_id)["result"]["snapshot_id"]
    assert server.kernel(page.kernel_id)["state"] == "parked"
    assert used() - before < 100 << 20
    server.do("suspend", page.kernel_id)
    assert page.run(CHECK) == EXPECTED
    server.do("suspend", page.kernel_id)
    server.do("resume", page.kernel_id, snapshot_id=saved)
    assert page.run(CHECK) == EXPECTED


def test_an_idle_kernel_is_parked_by_itself_and_a_busy_one_is_not(started):
    server, page, before = started("--GpuCkptServer.park_after=2")
    wait_for(lambda: server.kernel(page.kernel_id)["state"] == "parked")
    assert used() - before < 100 << 20
    request = page.execute("import time\nfor _ in range(60): big += 0; time.sleep(0.1)\n" + CHECK)
    states = set()
    while not any(
        m["parent_header"].get("msg_id") == request and m["msg_type"] == "execute_reply"
        for m in list(page.received)
    ):
        states.add(server.kernel(page.kernel_id)["state"])
        time.sleep(0.1)
    assert page.output(request) == EXPECTED
    assert states <= {"parked", "unparking", "running"}


def test_a_daemon_that_dies_leaves_it_parked_and_the_next_unparks_it(started, monkeypatch):
    server, page, _ = started()
    server.do("park", page.kernel_id)
    for name, value in server.env.items():
        monkeypatch.setenv(name, value)
    with Client.connect() as client:
        os.kill(client.send(calls.handshake()).pid, signal.SIGKILL)
    assert page.run(CHECK) == EXPECTED
    assert server.kernel(page.kernel_id)["state"] == "running"


def test_the_server_stops_and_starts_with_a_parked_kernel(started):
    server, page, before = started()
    server.do("park", page.kernel_id)
    server.stop()
    assert used() - before < 100 << 20
    server.start()
    assert server.page(page.kernel_id).run(CHECK) == EXPECTED
