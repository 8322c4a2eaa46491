"""A daemon that can open hardly any file: it names the limit, and takes no living kernel for an ended one."""

import os
import resource
from contextlib import contextmanager

import pytest

from jupyter_gpuckpt.errors import DaemonUnavailable, GpuCkptError
from jupyter_gpuckpt.wire import calls
from jupyter_gpuckpt.wire.states import KernelState


@pytest.fixture
def daemon_env(emptied_daemon_env):
    return emptied_daemon_env


@contextmanager
def few_descriptors(pid, more):
    """Let a process open only so many more files."""
    soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    used = sorted(map(int, os.listdir(f"/proc/{pid}/fd")))
    limit, free = 0, 0
    while free < more or limit in used:
        free += limit not in used
        limit += 1
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (limit, hard))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))


def settled(client, kernel_id):
    found = client.send(calls.kernel(kernel_id))
    return found if found.state in (KernelState.RUNNING, KernelState.SUSPENDED) else None


def test_no_kernel_is_lost_and_the_limit_is_named(client, kernel, counts, eventually):
    daemon, codes = client.send(calls.handshake()).pid, set()

    def tried(call, more):
        """Do something while the daemon can open only so many more files; return the kernel as it is afterwards."""
        try:
            with few_descriptors(daemon, more):
                client.wait(client.send(call(kernel.kernel_id)).operation_id)
        except DaemonUnavailable:
            pass  # not even the request could be made
        except GpuCkptError as error:
            codes.add(error.code)
        return eventually(lambda: settled(client, kernel.kernel_id))

    pid = kernel.pid
    for more in (2, 4, 6, 9, 13):
        now = tried(calls.suspend, more)
        if now.state is KernelState.RUNNING:
            assert now.pid == pid
            client.wait(client.send(calls.suspend(kernel.kernel_id)).operation_id)
        if tried(calls.resume, more).state is KernelState.SUSPENDED:
            client.wait(client.send(calls.resume(kernel.kernel_id)).operation_id)
        pid, before = client.send(calls.kernel(kernel.kernel_id)).pid, counts(kernel.kernel_id)
        eventually(lambda before=before: counts(kernel.kernel_id) > before)
    assert "limit_reached" in codes
    assert not codes & {"error", "internal", "kernel_lost"}
