"""A save by the ferry neither copies nor stores the GPU memory that has not changed since the last snapshot."""

from __future__ import annotations

from pathlib import Path

import pytest

from jupyter_gpuckpt.client import Client
from jupyter_gpuckpt.wire import calls
from tests.gpu.test_kernel import done, kernel, reconnected, run

__all__ = ["kernel"]
pytestmark = pytest.mark.gpu

GB = 1 << 30
#: 3 GB of random numbers, and what they must be: `wanted` lies on the CPU.
SETUP = """
import torch
big = torch.empty(3 << 27, device="cuda", dtype=torch.int64)
for part in big.split(1 << 24):
    part.random_(-(1 << 62), 1 << 62)
wanted = big.cpu()
torch.cuda.empty_cache()
def check():
    return all(
        torch.equal(part.cpu(), kept) for part, kept in zip(big.split(1 << 24), wanted.split(1 << 24))
    )
"""
#: A thread that captures graphs without a pause, in the mode in which other threads must leave the driver alone.
CAPTURES = """
import threading
stop, captured, errors = threading.Event(), [], []
def capture():
    try:
        side, x = torch.cuda.Stream(), torch.ones(1 << 20, device="cuda")
        while not stop.is_set():
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=side, capture_error_mode="global"):
                y = x * 2
                for _ in range(200):
                    y = y + 1
            graph.replay()
            torch.cuda.synchronize()
            captured.append(float(y[0]))
    except BaseException as error:
        errors.append(repr(error))
thread = threading.Thread(target=capture)
thread.start()
"""


@pytest.fixture(autouse=True)
def ferry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUPYTER_GPUCKPT_GPU_COPY", "own")


def logged(daemon_env: dict[str, str]) -> str:
    logs = (Path(daemon_env["JUPYTER_GPUCKPT_DATA_DIR"]) / "log").glob("*.log")
    return "".join(log.read_text(errors="replace") for log in logs)


def test_only_what_changed_is_stored_and_all_of_it_comes_back(kernel, daemon_env):
    manager, client = kernel
    run(client, SETUP)
    kernel_id = manager.provisioner.kernel_id
    with Client.connect() as daemon:

        def save():
            return done(daemon, daemon.send(calls.save(kernel_id)))

        def suspended_and_resumed():
            result = done(daemon, daemon.send(calls.suspend(kernel_id)))
            done(daemon, daemon.send(calls.resume(kernel_id)))
            reconnected(client)
            assert run(client, "print(check())") == "True\n"
            return result

        assert save().sizes.new_bytes > 3 * GB
        assert save().sizes.new_bytes < 3 * GB / 1000 + (16 << 20)
        # A tenth at once, some single numbers, and one that is the last.
        run(
            client,
            "for one in (big, wanted):\n"
            "    one[1000 : 1000 + len(one) // 10] += 1\n"
            "    one[len(one) // 2 :: 1 << 22] -= 1\n"
            "    one[-1] = 5",
        )
        # As much changed on the CPU.
        assert save().sizes.new_bytes < 1.2 * 2 * 3 * GB / 10 + (64 << 20)
        assert suspended_and_resumed().sizes.new_bytes < 3 * GB / 10
        # The resumed process has its memory at the same addresses, so its next save finds it as well.
        assert save().sizes.new_bytes < 3 * GB / 100
        # Memory that is freed and taken again is other memory.
        run(client, "del big; torch.cuda.empty_cache(); wanted = wanted[: 1 << 28].clone()")
        run(client, "other = torch.zeros(1 << 20, device='cuda'); big = wanted.cuda()")
        save()
        assert suspended_and_resumed().sizes.new_bytes < 3 * GB / 10
        newest = daemon.send(calls.snapshots())[0]
        assert daemon.send(calls.verify(newest.snapshot_id)).problems == []
    assert "digests cannot be used" not in logged(daemon_env)


def test_a_call_that_would_share_memory_with_another_process_fails_and_nothing_else(kernel):
    manager, client = kernel
    run(client, SETUP)
    shares = "try: big.untyped_storage()._share_cuda_()\nexcept RuntimeError as error: print('CUDA error' in str(error))"
    assert run(client, shares) == "True\n"
    with Client.connect() as daemon:
        done(daemon, daemon.send(calls.save(manager.provisioner.kernel_id)))
    assert run(client, "print(check())") == "True\n"


def test_a_graph_that_is_captured_while_the_memory_is_read_is_not_disturbed(kernel, daemon_env):
    manager, client = kernel
    run(client, SETUP + CAPTURES)
    kernel_id = manager.provisioner.kernel_id
    with Client.connect() as daemon:
        for _ in range(6):
            done(daemon, daemon.send(calls.save(kernel_id)))
    run(client, "stop.set(); thread.join()")
    assert run(client, "print(errors, set(captured), len(captured) > 10)") == "[] {202.0} True\n"
    assert run(client, "print(check())") == "True\n"
    assert "digests cannot be used" not in logged(daemon_env)
