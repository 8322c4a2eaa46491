"""Runs in a container: what the doctor says there, and what becomes of a kernel. Prints a Result as JSON."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec

from jupyter_gpuckpt.client import Client
from jupyter_gpuckpt.client.programs import host_report
from jupyter_gpuckpt.errors import GpuCkptError
from jupyter_gpuckpt.wire import calls
from jupyter_gpuckpt.wire.protocol import HostReport
from tests.matrix.trial import Kernel

BEGIN = """
import multiprocessing, os, sqlite3, subprocess, threading
from multiprocessing import shared_memory
lock = multiprocessing.Lock()
block = shared_memory.SharedMemory(create=True, size=1 << 20)
block.buf[:5] = b"hello"
rows = sqlite3.connect(":memory:")
rows.execute("create table t (n)")
rows.execute("insert into t values (20)")
child = subprocess.Popen(["sleep", "1000"])
tick = threading.Event()
threading.Thread(target=tick.wait, daemon=True).start()
memory = os.urandom(1 << 20)
digest = hash(memory)
ids = os.getuid(), os.getgid(), os.getpid()
"""
USE = """
assert bytes(block.buf[:5]) == b"hello" and hash(memory) == digest and child.poll() is None
assert ids == (os.getuid(), os.getgid(), os.getpid()) and threading.active_count() > 1
with lock:
    print(rows.execute("select n from t").fetchone()[0] + 1)
"""
_PATIENCE = 60.0


class Result(msgspec.Struct):
    """What was found."""

    report: HostReport
    #: Why the kernel was started plainly, and what the user is told to do; both empty where it can be saved.
    plain_reason: str
    plain_hint: str
    #: What a cell printed, before and after a save, and after a suspend and a resume.
    printed: list[str]


def main() -> None:
    """Try everything."""
    home = tempfile.mkdtemp()
    os.environ.update(
        HOME=home,
        IPYTHONDIR=f"{home}/ipython",
        JUPYTER_RUNTIME_DIR=f"{home}/runtime",
        JUPYTER_DEFAULT_PROVISIONER_NAME="gpuckpt-provisioner",
        JUPYTER_GPUCKPT_IDLE_EXIT="1",
    )
    report = host_report()
    with Kernel("python3", Path(home)) as kernel:
        provisioner = kernel.provisioner
        kernel.run(BEGIN, _PATIENCE)
        printed = [kernel.run(USE, _PATIENCE)]
        if not provisioner.plain_reason:
            try:
                printed += _saved(kernel)
            except GpuCkptError as error:
                sys.exit(f"{error.message} {error.hint}\n{error.details}")
    result = Result(report, provisioner.plain_reason, provisioner.plain_hint, printed)
    sys.stdout.write(msgspec.json.encode(result).decode())


def _saved(kernel: Kernel) -> Iterator[str]:
    """Save, suspend and resume; what a cell prints after each."""
    with Client.connect() as client:
        client.wait(client.send(calls.save(kernel.kernel_id)).operation_id)
        yield kernel.run(USE, _PATIENCE)
        client.wait(client.send(calls.suspend(kernel.kernel_id)).operation_id)
        client.wait(client.send(calls.resume(kernel.kernel_id)).operation_id)
        kernel.client.wait_for_ready(timeout=_PATIENCE)
        yield kernel.run(USE, _PATIENCE)


if __name__ == "__main__":
    main()
