"""More kernels than fit on the GPU: each comes back when its next cell runs, and an idle one gives way."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack

import pytest

from jupyter_gpuckpt.host import gpu
from tests.conftest import wait_for
from tests.server.conftest import make_server  # noqa: F401 - a fixture

pytestmark = pytest.mark.gpu

MB, GB = 1 << 20, 1 << 30
#: 6 GB; what is checked covers all of it.
SETUP = """
import torch, time
parts = [torch.full((1 << 28,), 0, device="cuda", dtype=torch.int32) for _ in range(6)]
torch.cuda.synchronize()
"""
STEP = """
for part in parts:
    part += 1
print({int(part.sum(dtype=torch.int64)) // (1 << 28) for part in parts})
"""
CYCLES = 8


@pytest.fixture
def two(
    make_server: Callable,  # noqa: F811
    hog: Callable[..., AbstractContextManager[None]],
):
    """Return a function that starts a server with options, and two pages whose kernels together do not fit into what it leaves."""
    pytest.importorskip("torch")
    if not gpu.gpus():
        pytest.skip("there is no GPU here")
    with ExitStack() as hogs:

        def start(*options: str, leave: int = 9 * GB):
            hogs.enter_context(hog(leave=leave))
            server = make_server(*options).start()
            first, second = server.open("first.ipynb"), server.open("second.ipynb")
            first.run(SETUP)
            server.do("park", first.kernel_id)
            second.run(SETUP)
            return server, first, second

        yield start


def used() -> int:
    """Return the bytes of the first GPU that are in use."""
    return gpu.gpus()[0].memory_bytes - next(iter(gpu.free_bytes().values()))


def state(server, page) -> str:
    return str(server.kernel(page.kernel_id)["state"])


def test_two_kernels_that_do_not_fit_together_take_turns_and_lose_nothing(two) -> None:
    server, *pages = two()
    spent = []
    for cycle in range(1, CYCLES + 1):
        for page, other in (pages, pages[::-1]):
            began = time.monotonic()
            assert page.run(STEP) == f"{{{cycle}}}\n"
            spent.append(time.monotonic() - began)
            assert (state(server, page), state(server, other)) == ("running", "parked")
    print(f"{2 * CYCLES} turns of 6 GB: {min(spent):.2f} to {max(spent):.2f} s each")
    # A suspended one takes its turn, too.
    server.do("suspend", pages[0].kernel_id)
    assert pages[1].run(STEP) == f"{{{CYCLES + 1}}}\n"
    assert pages[0].run(STEP) == f"{{{CYCLES + 1}}}\n"
    assert state(server, pages[1]) == "parked"


def test_a_kernel_that_gives_way_keeps_its_context_until_a_user_parks_it(two) -> None:
    server, first, second = two("--GpuCkptProvisioner.gpu_copy=own", leave=12 * GB)
    assert first.run(STEP) == "{1}\n"
    assert state(server, second) == "parked"
    before = used()
    server.do("park", second.kernel_id)
    assert state(server, second) == "parked"
    assert 200 * MB < before - used() < 2 * GB
    assert second.run(STEP) == "{1}\n"
    assert state(server, first) == "parked"
    # What is parked so can be saved, suspended and resumed.
    server.do("save", first.kernel_id)
    server.do("suspend", first.kernel_id)
    assert first.run(STEP) == "{2}\n"
    assert second.run(STEP) == "{2}\n"


def test_a_page_in_front_brings_back_what_no_user_has_parked(two) -> None:
    server, first, second = two("--GpuCkptProvisioner.gpu_copy=own")

    def come_to_the_front(page) -> str:
        path = f"api/gpuckpt/kernels/{page.kernel_id}/expect_cell"
        return str(server.request("POST", path).json()["state"])

    assert come_to_the_front(first) == "parked", "a user has parked it"
    assert first.run(STEP) == "{1}\n"
    assert come_to_the_front(second) == "parked", "the other one was used a moment ago"
    server.do("park", first.kernel_id)
    assert come_to_the_front(second) == "running"
    assert second.run(STEP) == "{1}\n"


def test_a_kernel_waits_for_one_that_computes_and_says_so(two) -> None:
    server, first, second = two()
    busy = second.execute("time.sleep(6); print('done')")
    wait_for(lambda: server.get(f"api/kernels/{second.kernel_id}")["execution_state"] == "busy")
    request = first.execute(STEP)
    wait_for(lambda: "waits for the GPU" in (server.kernel(first.kernel_id)["reason"] or ""))
    print(server.kernel(first.kernel_id)["reason"])
    assert first.output(request) == "{1}\n"
    assert second.output(busy) == "done\n"
    assert server.kernel(first.kernel_id)["reason"] is None


def test_one_that_waits_in_vain_is_told_why_and_stays_parked(two) -> None:
    server, first, second = two("--GpuCkptServer.gpu_wait=1")
    second.execute("time.sleep(60)")
    wait_for(lambda: server.get(f"api/kernels/{second.kernel_id}")["execution_state"] == "busy")
    request = first.execute(STEP)
    reply = first.wait_for(
        lambda m: m["msg_type"] == "execute_reply" and m["parent_header"]["msg_id"] == request
    )
    assert reply["content"]["status"] == "error"
    assert "GB of GPU memory are needed" in reply["content"]["evalue"]
    print(reply["content"]["evalue"])
    assert state(server, first) == "parked"
    server.request("POST", f"api/kernels/{second.kernel_id}/interrupt")
    assert first.run(STEP) == "{1}\n"
