"""A save by the ferry neither copies nor stores the GPU memory that has not changed since the last snapshot."""

from __future__ import annotations

from pathlib import Path

import pytest

from jupyter_gpuckpt.client import Client
from jupyter_gpuckpt.errors import KernelNotCheckpointable
from jupyter_gpuckpt.host import gpu
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
#: A child with CUDA to which a tensor is given; it evaluates what it is asked.
SHARES = """
import sys, tempfile, textwrap, torch.multiprocessing
folder = tempfile.mkdtemp()
with open(f"{folder}/child.py", "w") as file:
    file.write(textwrap.dedent('''
        import torch
        def serve(pipe):
            while True:
                asked = pipe.recv()
                if isinstance(asked, torch.Tensor):
                    globals()["x"] = asked
                    pipe.send(None)
                else:
                    found = eval(asked, globals())
                    torch.cuda.synchronize()
                    pipe.send(found)
                del asked
    '''))
sys.path.insert(0, folder)
import child
context = torch.multiprocessing.get_context("spawn")
ours, theirs = context.Pipe()
context.Process(target=child.serve, args=(theirs,), daemon=True).start()
def ask(what):
    ours.send(what)
    assert ours.poll(120)
    return ours.recv()
def give():
    ask(big)
give()
"""
#: Copies by address between two GPUs in small and large memory; each step checks them.
PEERS = """
one = [torch.zeros(size, dtype=torch.int64, device="cuda:0") for size in (100, 1 << 20)]
two = [part.to("cuda:1") for part in one]
go, steps = True, 0
def step():
    global steps
    for first, second in zip(one, two):
        first.copy_(second + 1)
        second.copy_(first)
    steps += 1
def right():
    return all(int(part.min()) == int(part.max()) in (steps, steps + 1) for part in one + two)
def peers():
    import ctypes
    driver, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
    torch.cuda.set_device(0)
    torch.zeros(1, device="cuda")
    driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 1)
    return driver.cuCtxEnablePeerAccess(context, 0) == 704
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


def test_a_process_that_has_opened_memory_of_another_one_is_refused_until_it_drops_it(kernel):
    manager, client = kernel
    run(client, SETUP)
    run(client, SHARES)
    assert (
        run(client, "print(ask('int(x[0])') == int(big[0]), ask('int(x[-1])') == int(big[-1]))")
        == "True True\n"
    )
    run(client, "big[0] = 5; torch.cuda.synchronize(); wanted[0] = 5")
    assert run(client, "print(ask('int(x[0])'))") == "5\n"
    kernel_id = manager.provisioner.kernel_id
    with Client.connect() as daemon:
        for call in (calls.save, calls.suspend, calls.park):
            with pytest.raises(KernelNotCheckpointable, match="CUDA IPC"):
                done(daemon, daemon.send(call(kernel_id)))
        assert run(client, "print(check(), ask('int(x[0])'))") == "True 5\n"
        # The memory is the ferry's, and so is the child's own.
        run(
            client,
            "ask('globals().update(own=x[:1 << 20].clone())'); ask('globals().pop(\"x\") is None')",
        )
        done(daemon, daemon.send(calls.save(kernel_id)))
        done(daemon, daemon.send(calls.suspend(kernel_id)))
        done(daemon, daemon.send(calls.resume(kernel_id)))
        reconnected(client)
        assert run(client, "print(check(), ask('int(own[0])'))") == "True 5\n"
        # A handle from before is that of the same memory.
        run(client, "give()")
        assert (
            run(client, "print(ask('int(x[0])'), ask('int(x[-1])') == int(big[-1]))") == "5 True\n"
        )


@pytest.mark.several_gpus
def test_a_kernel_with_peer_access_between_its_gpus_is_saved_without_its_agent_in_mid_cell(kernel):
    if len(gpu.gpus()) < 2:
        pytest.skip("two GPUs are needed")
    manager, client = kernel
    run(client, SETUP + PEERS)
    kernel_id = manager.provisioner.kernel_id
    client.execute("while go: step()")
    with Client.connect() as daemon:
        done(daemon, daemon.send(calls.save(kernel_id)))
        done(daemon, daemon.send(calls.suspend(kernel_id)))
        done(daemon, daemon.send(calls.resume(kernel_id)))
        done(daemon, daemon.send(calls.park(kernel_id)))
        done(daemon, daemon.send(calls.resume(kernel_id)))
    manager.interrupt_kernel()
    reconnected(client)
    assert run(client, "print(check(), right(), steps > 3, peers())") == "True True True True\n"


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
