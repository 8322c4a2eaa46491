"""A daemon of its own in a directory of its own, and a real ipykernel under it."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager

from jupyter_gpuckpt.client import Client
from jupyter_gpuckpt.wire import calls


@contextmanager
def daemon() -> Iterator[Client]:
    """Yield a connected client; this process's environment points to the daemon's directories until the end."""
    directory = Path(tempfile.mkdtemp(prefix="gpuckpt-bench-"))
    before = dict(os.environ)
    os.environ.update(
        JUPYTER_GPUCKPT_DATA_DIR=str(directory / "data"),
        JUPYTER_GPUCKPT_RUNTIME_DIR=str(directory / "run"),
        JUPYTER_DEFAULT_PROVISIONER_NAME="gpuckpt-provisioner",
        IPYTHONDIR=str(directory / "ipython"),
    )
    try:
        with Client.connect() as client:
            pid = client.send(calls.handshake()).pid
            try:
                yield client
            finally:
                for kernel in client.send(calls.kernels()):
                    client.send(calls.kill(kernel.kernel_id))
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
    finally:
        os.environ.clear()
        os.environ.update(before)
        shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def kernel(setup: str, *, cwd: str | None = None) -> Iterator[tuple[str, BlockingKernelClient]]:
    """(kernel id, client) of an ipykernel that has run `setup`."""
    manager = KernelManager(kernel_name="python3")
    manager.start_kernel(cwd=cwd)
    client = manager.client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=120)
        client.execute_interactive(setup, timeout=300, output_hook=lambda message: None)
        yield manager.provisioner.kernel_id, client
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def wait_until_ready(client: BlockingKernelClient, seconds: float = 120) -> None:
    """Until a kernel answers that nobody but us started. Raises RuntimeError.

    The client takes it for dead when its heartbeat does not come at once, which it does not before its sockets are bound.
    """
    deadline = time.monotonic() + seconds
    while True:
        try:
            client.wait_for_ready(timeout=max(1.0, deadline - time.monotonic()))
        except RuntimeError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
        else:
            return
