"""A real ipykernel with a GPU: saved while it runs on, suspended, resumed, and everything it computes is as it was."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager
from jupyter_client.provisioning.factory import KernelProvisionerFactory

from jupyter_gpuckpt.client import Client
from jupyter_gpuckpt.errors import FreezeFailed, GpuCkptError, HostIncompatible
from jupyter_gpuckpt.host import gpu, processes
from jupyter_gpuckpt.wire import calls
from jupyter_gpuckpt.wire.progress import RESUME_STAGES, SAVE_STAGES, SUSPEND_STAGES, Stage
from jupyter_gpuckpt.wire.protocol import Operation, Result
from jupyter_gpuckpt.wire.states import KernelState

pytestmark = pytest.mark.gpu

GB = 1 << 30

#: A 4 GB tensor, a captured CUDA graph, a DataLoader with live workers in mid-epoch, a thread that counts, a generator.
SETUP = """
import json, os, threading, time
import torch
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(0)
big = torch.randint(-1000, 1000, (1 << 30,), device="cuda", dtype=torch.int32)   # 4 GB

def big_sum():
    # In parts: as int64 all of it at once would leave 8 GB in PyTorch's cache, which are saved as well.
    return sum(int(part.sum(dtype=torch.int64)) for part in big.split(1 << 26))

total = big_sum()
torch.cuda.empty_cache()

static_in, static_out = torch.zeros(1 << 20, device="cuda"), None
warm = torch.cuda.Stream()
warm.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(warm):
    static_out = static_in * 2 + 1
torch.cuda.current_stream().wait_stream(warm)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    static_out = static_in * 2 + 1

class Numbers(Dataset):
    def __len__(self):
        return 64
    def __getitem__(self, index):
        return torch.full((1000,), float(index))

batches = iter(DataLoader(Numbers(), batch_size=4, num_workers=2, persistent_workers=True))
seen = [next(batches)[0, 0].item() for _ in range(3)]

ticks = 0
def tick():
    global ticks
    while True:
        ticks += 1
        time.sleep(0.001)
threading.Thread(target=tick, daemon=True).start()

def state(value):
    static_in.fill_(value)
    graph.replay()
    torch.cuda.synchronize()
    return json.dumps({
        "total": big_sum() == total,
        "graph": static_out[:3].tolist(),
        "batch": next(batches)[:, 0].tolist(),
        "ticks": ticks, "pid": os.getpid(), "clock": time.monotonic(),
    })
"""


@pytest.fixture
def kernel(
    daemon_env: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[KernelManager, BlockingKernelClient]]:
    """Yield a kernel under the engine, with a client that is connected."""
    pytest.importorskip("torch")
    if not gpu.gpus():
        pytest.skip("there is no GPU here")
    for name, value in daemon_env.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("JUPYTER_DEFAULT_PROVISIONER_NAME", "gpuckpt-provisioner")
    KernelProvisionerFactory.clear_instance()
    manager = KernelManager(kernel_name="python3")
    manager.start_kernel()
    client = manager.client()
    client.start_channels()
    client.wait_for_ready(timeout=120)
    yield manager, client
    client.stop_channels()
    manager.shutdown_kernel(now=True)
    KernelProvisionerFactory.clear_instance()
    for log in (Path(daemon_env["JUPYTER_GPUCKPT_DATA_DIR"]) / "log").glob("*.log"):
        print(f"--- {log.name}", log.read_text(errors="replace"), sep="\n")


def done(daemon: Client, operation: Operation) -> Result:
    """Return the result of an operation; print the tool's log if it failed."""
    try:
        result = daemon.wait(operation.operation_id)
    except GpuCkptError as error:
        print(f"{operation.kind}: {error.message} {error.hint}", error.details, sep="\n")
        raise
    sizes = result.sizes
    print(
        f"\n{operation.kind}: {result.seconds:.2f} s, still for {result.frozen_seconds:.3f} s,",
        f"{sizes.raw_bytes / 1e9:.2f} GB ({sizes.gpu_bytes / 1e9:.2f} GPU) as {sizes.new_bytes / 1e9:.2f} new;",
        ", ".join(f"{name} {spent:.3f}" for name, spent in result.seconds_by_stage.items()),
    )
    return result


def run(client: BlockingKernelClient, code: str) -> str:
    """Return what `code` printed."""
    printed: list[str] = []
    reply = client.execute_interactive(
        code,
        timeout=300,
        output_hook=lambda m: printed.append(m["content"].get("text", "")),
    )
    assert reply["content"]["status"] == "ok", reply["content"]
    return "".join(printed)


def reconnected(client: BlockingKernelClient) -> None:
    """Until the kernel's output reaches us again: SUB sockets reconnect some time after a resume."""
    client.wait_for_ready(timeout=60)


def state(client: BlockingKernelClient, value: int) -> dict[str, object]:
    lines = run(client, f"print(state({value}))").splitlines()
    # After a second resume of one snapshot IPython says, too, that its history has a line of this number already.
    return dict(json.loads(next(line for line in lines if line.startswith("{"))))


def check(before: dict, after: dict, value: int) -> None:
    assert after["total"]
    assert after["graph"] == [value * 2 + 1.0] * 3
    assert after["batch"] == [number + 4 for number in before["batch"]]
    assert after["ticks"] > before["ticks"]
    assert after["pid"] == before["pid"]
    assert after["clock"] > before["clock"]


def test_a_gpu_kernel_is_saved_suspended_and_resumed(
    kernel: tuple[KernelManager, BlockingKernelClient],
) -> None:
    manager, client = kernel
    run(client, SETUP)
    zero = state(client, 1)
    idle = sum(gpu.free_bytes().values())
    with Client.connect() as daemon:
        kernel_id = manager.provisioner.kernel_id
        record = daemon.send(calls.kernel(kernel_id))
        assert record.gpu_bytes > 4 * GB
        saved = done(daemon, daemon.send(calls.save(kernel_id)))
        one = state(client, 2)
        check(zero, one, 2)
        (process,) = daemon.send(calls.manifest_summary(saved.snapshot_id))["gpu"]
        assert process["staging"], "GPU memory goes through a file, not through CRIU"

        suspended = done(daemon, daemon.send(calls.suspend(kernel_id)))
        assert suspended.sizes.gpu_bytes > 4 * GB
        assert not processes.exists(record.pid)
        assert not processes.exists(record.init_pid)
        free = sum(gpu.free_bytes().values())
        assert free - idle > 4 * GB

        began = time.monotonic()
        done(daemon, daemon.send(calls.resume(kernel_id)))
        reconnected(client)
        two = state(client, 3)
        print(f"first answer after {time.monotonic() - began:.2f} s")
        check(one, two, 3)

        # A second generation, from the resumed process.
        done(daemon, daemon.send(calls.suspend(kernel_id)))
        done(daemon, daemon.send(calls.resume(kernel_id)))
        reconnected(client)
        check(two, state(client, 4), 4)

        # The first save is of its moment: the batch after `zero`.
        done(daemon, daemon.send(calls.suspend(kernel_id)))
        done(daemon, daemon.send(calls.resume(kernel_id, saved.snapshot_id)))
        reconnected(client)
        check(zero, state(client, 5), 5)


def test_a_kernel_that_the_driver_refuses_runs_on(
    kernel: tuple[KernelManager, BlockingKernelClient],
) -> None:
    manager, client = kernel
    run(
        client,
        """
import torch
from cuda.bindings import driver
x = torch.arange(1000, device="cuda")
error, managed = driver.cuMemAllocManaged(1 << 20, 1)
assert int(error) == 0
""",
    )
    with Client.connect() as daemon:
        kernel_id = manager.provisioner.kernel_id
        for verb in (calls.save, calls.suspend):
            with pytest.raises(FreezeFailed, match="managed memory"):
                done(daemon, daemon.send(verb(kernel_id)))
            assert run(client, "print(int(x.sum()))") == "499500\n"
        assert daemon.send(calls.snapshots(kernel_id)) == []


@pytest.mark.parametrize("verb", ["save", "suspend"])
def test_a_kernel_that_has_only_asked_for_a_gpu_can_use_it_afterwards(
    kernel: tuple[KernelManager, BlockingKernelClient], verb: str
) -> None:
    """It has the driver's descriptors and no context: it must not be taken for a child that cannot use them."""
    manager, client = kernel
    run(client, "import torch; available = torch.cuda.is_available()")
    with Client.connect() as daemon:
        kernel_id = manager.provisioner.kernel_id
        done(daemon, daemon.send(getattr(calls, verb)(kernel_id)))
        if verb == "suspend":
            done(daemon, daemon.send(calls.resume(kernel_id)))
            reconnected(client)
        code = "print(available, torch.ones(3, device='cuda').sum().item())"
        assert run(client, code) == "True 3.0\n"


def test_a_kernel_that_finds_no_room_on_the_gpu_waits_in_its_snapshot(
    kernel: tuple[KernelManager, BlockingKernelClient],
    hog: Callable[[], AbstractContextManager[None]],
) -> None:
    manager, client = kernel
    run(client, 'import torch; x = torch.ones(1 << 28, device="cuda")')  # 1 GB
    with Client.connect() as daemon:
        kernel_id = manager.provisioner.kernel_id
        done(daemon, daemon.send(calls.suspend(kernel_id)))
        with hog(), pytest.raises(HostIncompatible, match="MB of GPU memory are needed"):
            done(daemon, daemon.send(calls.resume(kernel_id)))
        done(daemon, daemon.send(calls.resume(kernel_id)))
        reconnected(client)
        assert run(client, "print(int(x.sum()))") == f"{1 << 28}\n"


def kill_in(stage: Stage, verb: str, stages: tuple[Stage, ...], kernel_id: str) -> None:
    """Kill the daemon when its operation is seen in this stage, or in a later one: some take a millisecond."""
    late = stages[stages.index(stage) :]
    with Client.connect() as daemon:
        pid = daemon.send(calls.handshake()).pid
        operation = daemon.send(getattr(calls, verb)(kernel_id))
        for shown in daemon.follow(operation.operation_id):
            if shown.progress.stage in late:
                time.sleep(random.uniform(0.0, 0.1))
                os.kill(pid, signal.SIGKILL)
                return
    raise AssertionError(f"{verb} never came to {stage}")


def test_a_gpu_kernel_whose_daemon_is_killed_computes_on(
    kernel: tuple[KernelManager, BlockingKernelClient],
) -> None:
    manager, client = kernel
    run(client, 'import torch; x = torch.ones(1 << 29, device="cuda")')  # 2 GB
    kernel_id = manager.provisioner.kernel_id
    expected = f"{1 << 29} 3.0\n"
    code = "print(int(x.sum()), torch.ones(3, device='cuda').sum().item())"
    for verb, stages in (("save", SAVE_STAGES), ("suspend", SUSPEND_STAGES)):
        for stage in (stage for stage in stages if "gpu" in stage):
            kill_in(stage, verb, stages, kernel_id)
            began = time.monotonic()
            with Client.connect() as daemon:
                assert daemon.send(calls.kernel(kernel_id)).state is KernelState.RUNNING
            assert run(client, code) == expected
            print(
                f"killed in {stage!r} of {verb}: computes on after {time.monotonic() - began:.2f} s"
            )
    with Client.connect() as daemon:
        done(daemon, daemon.send(calls.suspend(kernel_id)))
    for stage in (stage for stage in RESUME_STAGES if "gpu" in stage):
        kill_in(stage, "resume", RESUME_STAGES, kernel_id)
        with Client.connect() as daemon:
            assert daemon.send(calls.kernel(kernel_id)).state is KernelState.SUSPENDED
            assert sum(gpu.memory_of(processes.every()).values()) == 0
    with Client.connect() as daemon:
        done(daemon, daemon.send(calls.resume(kernel_id)))
        reconnected(client)
        assert run(client, code) == expected
