"""Copies of a kernel that uses a GPU, alive at the same time on the same GPU."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager

from jupyter_gpuckpt.client import Client
from jupyter_gpuckpt.linux.ports import HeldPorts
from jupyter_gpuckpt.wire import calls
from jupyter_gpuckpt.wire.protocol import BranchRequest
from tests.gpu.test_kernel import GB, SETUP, check, done, kernel, reconnected, run, state

__all__ = ["kernel"]

pytestmark = pytest.mark.gpu

_PORTS = ("shell_port", "iopub_port", "stdin_port", "control_port", "hb_port")


@contextmanager
def branched(
    daemon: Client, manager: KernelManager, snapshot_id: str
) -> Iterator[tuple[str, BlockingKernelClient]]:
    """Yield a second kernel from a snapshot, and a client of it."""
    original = daemon.send(calls.kernel(manager.provisioner.kernel_id))
    free = HeldPorts.free(len(_PORTS))
    request = BranchRequest(original.owner_id, snapshot_id, str(uuid.uuid4()), free.ports)
    kernel_id = daemon.send(calls.branch(request)).kernel_id
    client = BlockingKernelClient()
    try:
        done(daemon, daemon.send(calls.resume(kernel_id)))
        ports = dict(zip(_PORTS, free.ports, strict=True))
        client.load_connection_info({**manager.get_connection_info(), **ports})
        client.start_channels()
        client.wait_for_ready(timeout=120)
        yield kernel_id, client
    finally:
        client.stop_channels()
        daemon.send(calls.kill(kernel_id))
        free.release()


def test_three_copies_compute_side_by_side_on_one_gpu(
    kernel: tuple[KernelManager, BlockingKernelClient],
) -> None:
    manager, client = kernel
    run(client, SETUP)
    run(client, "mine = torch.full((4,), 1.0, device='cuda')")
    zero = state(client, 1)
    with Client.connect() as daemon:
        kernel_id = manager.provisioner.kernel_id
        saved = done(daemon, daemon.send(calls.save(kernel_id)))
        with (
            branched(daemon, manager, saved.snapshot_id) as (one_id, one),
            branched(daemon, manager, saved.snapshot_id) as (two_id, two),
        ):
            copies = {kernel_id: client, one_id: one, two_id: two}
            assert all(daemon.send(calls.kernel(each)).gpu_bytes > 4 * GB for each in copies)
            for number, copy in enumerate(copies.values()):
                run(copy, f"mine += {number}")
            states = [state(copy, 2) for copy in copies.values()]
            for number, copy in enumerate(copies.values()):
                check(zero, states[number], 2)
                assert run(copy, "print(mine.tolist())") == f"{[1.0 + number] * 4}\n"
            # Each can be frozen by itself, and comes back beside the others.
            for number, each in enumerate((one_id, kernel_id), start=1):
                done(daemon, daemon.send(calls.suspend(each)))
                assert run(two, "print(mine.tolist())") == f"{[3.0] * 4}\n"
                done(daemon, daemon.send(calls.resume(each)))
                reconnected(copies[each])
                before = states[list(copies).index(each)]
                check(before, state(copies[each], 3 + number), 3 + number)
