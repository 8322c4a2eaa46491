"""Suspends and resumes of one real ipykernel: nothing is left over, and the kernel does not notice."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from pathlib import Path

import pytest
from jupyter_client.manager import KernelManager
from jupyter_client.provisioning.factory import KernelProvisionerFactory

from jupyter_gpuckpt.host import processes
from jupyter_gpuckpt.wire import calls
from tests.live_files import entries_below

#: What each cycle leaves over is seen after a few of them, what one in several leaves after more.
CYCLES = [5, pytest.param(20, marks=pytest.mark.slow)]
STATE = """
import json, os, time
print(json.dumps({"pid": os.getpid(), "clock": time.monotonic(), "session": get_ipython().kernel.session.session,
                  "parent": os.getppid(), "x": x}))
x += 1
"""


@pytest.fixture
def kernel(client, daemon_env, monkeypatch):
    """Yield a kernel with a connected client."""
    for name, value in daemon_env.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("JUPYTER_DEFAULT_PROVISIONER_NAME", "gpuckpt-provisioner")
    KernelProvisionerFactory.clear_instance()
    manager = KernelManager(kernel_name="python3")
    manager.start_kernel()
    channels = manager.client()
    channels.start_channels()
    channels.wait_for_ready(timeout=180)
    yield manager, channels
    channels.stop_channels()
    manager.shutdown_kernel(now=True)
    manager.context.destroy(linger=0)
    KernelProvisionerFactory.clear_instance()


def ask(channels) -> dict:
    printed = []
    reply = channels.execute_interactive(
        STATE, timeout=180, output_hook=lambda m: printed.append(m["content"].get("text", ""))
    )
    assert reply["content"]["status"] == "ok", reply["content"]
    return json.loads("".join(printed))


def left_of(daemon_pid: int, data: Path, run: Path) -> dict:
    """Return what could be left over: of the daemon, of the machine and on disk."""
    ignored = ("/packs/", "catalog.sqlite", "pidfd", "socket:", "eventpoll", "eventfd")
    links = processes.descriptors(daemon_pid).values()
    mounts = Path("/proc/self/mounts").read_text().splitlines()
    return {
        "descriptors": sorted(link for link in links if not any(i in link for i in ignored)),
        "sockets": sum(link.startswith("socket:") for link in links),
        "pidfds": sum("pidfd" in link for link in links),
        "zombies": [p for p in processes.descendants(daemon_pid) if processes.state(p) == "Z"],
        "children": len(processes.children(daemon_pid)),
        "mounts": [line for line in mounts if str(run.parent) in line or ".gpuckpt" in line],
        "run": sorted(str(p.relative_to(run)) for p in entries_below(run)),
        "data": sorted(
            str(p.relative_to(data))
            for p in entries_below(data)
            if "packs" not in p.parts and "manifests" not in p.parts and "exits" not in p.parts
        ),
        "exits": len(list((data / "state" / "exits").glob("*"))),
        "temporary": sorted(name for name in os.listdir("/tmp") if name.startswith("criu")),
    }


def nothing_more(now: dict, before: dict) -> bool:
    """Whether there is no more than before; what other tests have left may go meanwhile."""
    return all(
        not Counter(now[what]) - Counter(was) if isinstance(was, list) else now[what] <= was
        for what, was in before.items()
    )


@pytest.mark.parametrize("cycles", CYCLES)
def test_cycles_of_a_kernel_leave_nothing_over(
    client, kernel, settings, short_dir, eventually, cycles
) -> None:
    manager, channels = kernel
    kernel_id, pid = manager.provisioner.kernel_id, client.send(calls.handshake()).pid
    channels.execute_interactive("x = 0", timeout=180)
    before, asked = None, time.monotonic()
    last = ask(channels)
    for cycle in range(cycles):
        client.wait(client.send(calls.suspend(kernel_id)).operation_id)
        assert client.send(calls.kernel(kernel_id)).state == "suspended"
        client.wait(client.send(calls.resume(kernel_id)).operation_id)
        channels.wait_for_ready(timeout=180)
        now = ask(channels)
        assert now["x"] == last["x"] + 1
        assert {k: now[k] for k in ("pid", "session", "parent")} == {
            k: last[k] for k in ("pid", "session", "parent")
        }
        asked, former = time.monotonic(), asked
        assert 0 < now["clock"] - last["clock"] < asked - former
        assert client.send(calls.kernel(kernel_id)).kernel_id == kernel_id
        for snapshot in client.send(calls.snapshots(kernel_id))[1:]:
            client.send(calls.delete_snapshot(snapshot.snapshot_id))
        last = now
        if cycle == 0:  # what is made once, at first use, is there now
            before = left_of(pid, settings.data, short_dir / "run")
    eventually(lambda: nothing_more(left_of(pid, settings.data, short_dir / "run"), before))
