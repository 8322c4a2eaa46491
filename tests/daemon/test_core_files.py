"""Nothing of a kernel's memory gets into a core file of the daemon; what runs in kernels crashes as anywhere else."""

import os
import resource
from pathlib import Path

from jupyter_gpuckpt.wire import calls


def limits(pid):
    found = resource.prlimit(pid, resource.RLIMIT_CORE)
    return found, Path(f"/proc/{pid}/coredump_filter").read_text().strip()


def test_the_daemon_leaves_none_and_kernels_do_as_before(client, kernel):
    ours = limits(os.getpid())
    (soft, _), chosen = limits(client.send(calls.handshake()).pid)
    assert (soft, int(chosen, 16)) == (0, 0)
    assert limits(kernel.pid) == ours
    client.wait(client.send(calls.suspend(kernel.kernel_id)).operation_id)
    client.wait(client.send(calls.resume(kernel.kernel_id)).operation_id)
    assert limits(client.send(calls.kernel(kernel.kernel_id)).pid) == ours
