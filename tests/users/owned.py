"""What a user has: a daemon, a kernel that counts, snapshots. Runs in a user's own process (shell.py)."""

from __future__ import annotations

import os
import sys
import time
import uuid
from contextlib import ExitStack
from pathlib import Path

from jupyter_gpuckpt.client import Client, this_owner
from jupyter_gpuckpt.host import processes
from jupyter_gpuckpt.wire import calls, daemon_settings
from jupyter_gpuckpt.wire.manifest_records import LaunchSpec
from jupyter_gpuckpt.wire.protocol import OwnerKind

#: Is in the kernel's memory, environment and connection.
SECRET = "the-word-that-nobody-else-may-know"
COUNTER = """
import os, sys, time
secret = os.environ["SECRET"] * 100
count = 0
while True:
    count += 1
    print(count, flush=True)
    time.sleep(0.01)
"""


class Owned:
    """A daemon and a kernel; `code` replaces the program that counts."""

    def __init__(
        self, code: str = COUNTER, data_dir: str = "", *, private_shm: bool = True
    ) -> None:
        home = Path.home()
        self.data = Path(data_dir) if data_dir else home / "data"
        os.environ["JUPYTER_GPUCKPT_DATA_DIR"] = str(self.data)
        self._open = ExitStack()
        self.client = self._open.enter_context(Client.connect(daemon_settings.from_environment()))
        try:
            owner = this_owner(OwnerKind.SERVER, root_dir=str(home))
            self._open.enter_context(self.client.hold(owner, lambda event: None))
            self.kernel_id = str(uuid.uuid4())
            self.log = home / f"{self.kernel_id}.log"
            spec = LaunchSpec(
                self.kernel_id,
                [sys.executable, "-c", code],
                {"PATH": os.environ["PATH"], "SECRET": SECRET},
                str(home),
                str(self.log),
                secrets={"key": SECRET},
                private_shm=private_shm,
            )
            self.client.send(calls.launch(owner.owner_id, spec))
        except BaseException:
            self._open.close()
            raise

    def close(self) -> None:
        """End the kernel; the daemon leaves by itself."""
        self.client.send(calls.kill(self.kernel_id))
        self._open.close()

    def count(self) -> int:
        """Return a number that the kernel has counted after this call."""
        seen, deadline = len(self._lines()), time.monotonic() + 120
        while len(lines := self._lines()) <= seen + 1:
            assert time.monotonic() < deadline, "the kernel does not count"
            time.sleep(0.01)
        return int(lines[-1])

    def _lines(self) -> list[str]:
        text = self.log.read_text() if self.log.exists() else ""
        return text[: text.rfind("\n") + 1].splitlines()

    def do(self, verb: str, *arguments: str) -> str:
        """Save, suspend or resume; return the snapshot's id."""
        operation = self.client.send(getattr(calls, verb)(self.kernel_id, *arguments))
        return self.client.wait(operation.operation_id).snapshot_id

    def pids(self) -> dict[str, int]:
        """Return the pids of the daemon and of the kernel's processes, by what they are."""
        kernel = self.client.send(calls.kernel(self.kernel_id))
        keeper = processes.children(kernel.init_pid)[0]
        daemon = self.client.send(calls.handshake()).pid
        return {"daemon": daemon, "init": kernel.init_pid, "keeper": keeper, "kernel": kernel.pid}
