"""What always runs: the daemon beside idle kernels, and the server's start with the extension."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from jupyter_gpuckpt.host import processes
from jupyter_gpuckpt.wire import calls

from .environment import daemon, kernel
from .measured import Row

#: How long the daemon is left alone before it is measured, and how long it is measured, in seconds.
_SETTLES_SECONDS, _MEASURED_SECONDS = 30.0, 120.0
_KERNELS, _STARTS = (1, 20), 5
#: Budgets: of 20 kernels, in seconds of processor time in an hour, in bytes, and of a start.
_HOUR_SECONDS, _MEMORY_MB, _START_SECONDS = 10.0, 60.0, 0.3
_EXTENSION = "jupyter_gpuckpt"


def run() -> Iterator[Row]:
    """Measure the daemon with one and with twenty idle kernels, then starts of a server without and with the extension."""
    for count in _KERNELS:
        yield from _daemon(count)
    without, with_it = [], []
    for _ in range(_STARTS):
        without.append(_start(is_enabled=False))
        with_it.append(_start(is_enabled=True))
    yield Row("start of a server without the extension: processor time", without)
    yield Row("the same with the extension", with_it)
    more = [one - other for one, other in zip(with_it, without, strict=True)]
    yield Row("what the extension adds", more, budget=_START_SECONDS)


def _daemon(count: int) -> Iterator[Row]:
    with daemon() as client, ExitStack() as kernels:
        for _ in range(count):
            kernels.enter_context(kernel("x = 1"))
        pid = client.send(calls.handshake()).pid
        time.sleep(_SETTLES_SECONDS)
        before, began = processes.processor_seconds(pid), time.monotonic()
        time.sleep(_MEASURED_SECONDS)
        used = processes.processor_seconds(pid) - before
        an_hour = used * 3600 / (time.monotonic() - began)
        memory = processes.resident_bytes(pid) / 1e6
    what = f"daemon, idle kernels: {count}"
    budgets = (_HOUR_SECONDS, _MEMORY_MB) if count == max(_KERNELS) else (None, None)
    yield Row(f"{what}; processor time in an hour", [an_hour], budget=budgets[0])
    yield Row(f"{what}; memory", [memory], "MB", budget=budgets[1])


def _start(*, is_enabled: bool) -> float:
    """Return the processor time of a Jupyter server until it has been running for some seconds."""
    with tempfile.TemporaryDirectory(prefix="gpuckpt-bench-") as folder:
        places = ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR")
        here = dict.fromkeys((*places, "JUPYTER_GPUCKPT_DATA_DIR"), folder)
        command = [sys.executable, "-m", "jupyter_server", "--no-browser", "--allow-root"]
        command += ["--ServerApp.ip=127.0.0.1", "--port=0", f"--ServerApp.root_dir={folder}"]
        if not is_enabled:
            command.append(f'--ServerApp.jpserver_extensions={{"{_EXTENSION}": False}}')
        log = Path(folder, "log")
        with (
            log.open("w") as file,
            subprocess.Popen(
                command, env=os.environ | here, stderr=file, start_new_session=True
            ) as server,
        ):
            while "is running at" not in log.read_text():
                time.sleep(0.05)
            time.sleep(3)
            used = processes.processor_seconds(server.pid)
            os.killpg(server.pid, signal.SIGKILL)
        loaded = re.search(rf"{_EXTENSION} \| extension was successfully loaded", log.read_text())
        assert bool(loaded) == is_enabled, log.read_text()
    return used
