"""Memory that nobody uses is given back before snapshots that nobody asked for, and is kept before others."""

import pytest

#: The C library returns nothing to the system by itself: the last object is in its way.
FREED = "data = [b'%1000d' % n for n in range(100_000)]; last = data.pop(); del data"
#: Objects that refer to each other, and are old: Python looks for such garbage only when as many have come again.
GARBAGE = """
import gc
class Node: pass
nodes = [Node() for _ in range(100_000)]
for n, node in enumerate(nodes): node.self, node.text = node, b'%400d' % n
gc.collect()
del nodes, node
"""
MB = 1_000_000


@pytest.fixture
def server(clean_server):
    return clean_server


def raw_bytes(server, snapshot_id):
    listed = server.get("api/gpuckpt/snapshots")["snapshots"]
    return next(one["raw_bytes"] for one in listed if one["snapshot_id"] == snapshot_id)


def saved(server, page):
    """Return the size of a snapshot that a user took."""
    server.do("save", page.kernel_id)
    return raw_bytes(server, server.kernel(page.kernel_id)["snapshot_id"])


def suspended(server, page):
    """Return the size of the snapshot of a server that stops."""
    report = server.request("POST", "api/gpuckpt/suspend_all", json={"within": 100}).json()
    (kernel,) = (one for one in report["kernels"] if one["kernel_id"] == page.kernel_id)
    assert kernel["saved"], kernel
    return raw_bytes(server, kernel["snapshot_id"])


@pytest.mark.parametrize(
    ("code", "freed"), [(FREED, 90 * MB), (GARBAGE, 30 * MB)], ids=["freed", "garbage"]
)
def test_what_is_not_used_does_not_reach_the_snapshot(server, code, freed):
    page = server.open()
    page.run(code)
    page.run("x = 41")
    before = saved(server, page)
    assert before - suspended(server, page) > freed
    assert page.run("x += 1; print(x)") == "42\n"


def test_a_kernel_that_runs_a_cell_is_neither_trimmed_nor_waited_for(server):
    page = server.open()
    page.run(FREED)
    busy = page.execute(
        "import time\nfor n in range(100_000): print(n, flush=True); time.sleep(0.01)"
    )
    page.wait_for(lambda _: page.printed(busy))
    before = saved(server, page)
    assert before - suspended(server, page) < 50 * MB


def test_it_can_be_switched_off(server_with):
    server = server_with("--GpuCkptServer.trim=False")
    page = server.open()
    page.run(FREED)
    before = saved(server, page)
    assert before - suspended(server, page) < 50 * MB
