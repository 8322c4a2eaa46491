"""A server for all rows of one worker, and rows that begin only where they can run."""

from __future__ import annotations

import fcntl
import importlib.util
import os
import shutil
import sysconfig
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from jupyter_gpuckpt.engine.gpu.driver import cuda
from jupyter_gpuckpt.host import gpu
from tests.conftest import end_everything_below, environment
from tests.gpu.matrix import lines
from tests.gpu.matrix.rows import Row
from tests.gpu.matrix.trial import LOOKS, Trial
from tests.server.conftest import Server

WORKLOADS = Path(__file__).parent / "workloads"


@pytest.fixture(scope="session")
def matrix_server(criu: Path, subreaper: None) -> Iterator[Server]:
    """Yield a server with a daemon of its own, whose notebooks' folder holds what rows run."""
    with tempfile.TemporaryDirectory(
        prefix="gpuckpt-", dir="/tmp", ignore_cleanup_errors=True
    ) as folder:
        options = [
            # What one row shuts down shall not be in the next one's way.
            "--GpuCkptServer.undo_shutdown_for=0",
            "--GpuCkptServer.gpu_wait=20",
            "--GpuCkptDaemon.undo_delete_for=0",
        ]
        server = Server(Path(folder), environment(criu, Path(folder)), *options)
        shutil.copytree(
            WORKLOADS, server.root / "workloads", ignore=shutil.ignore_patterns("__pycache__")
        )
        try:
            yield server.start()
            if server.process.poll() is None:
                server.stop()
        finally:
            end_everything_below(Path(folder))


@pytest.fixture
def trial(request: pytest.FixtureRequest) -> Callable[..., AbstractContextManager[Trial]]:
    """Try a row: `with trial(row) as ...`. `alone`: no other row runs at that time, on any worker. Skips what cannot run here."""

    @contextmanager
    def begin(row: Row, *, looks: int = LOOKS, alone: bool = False) -> Iterator[Trial]:
        if reason := missing(row):
            lines.keep(lines.Line(row.name, row.title, row.gpus, "not run", reason))
            pytest.skip(reason)
        server = request.getfixturevalue("matrix_server")
        lock = Path(tempfile.gettempdir()) / f"gpuckpt-matrix-{os.getuid()}.lock"
        with lock.open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
            with Trial(server, row, looks=looks) as begun:
                yield begun

    return begin


def missing(row: Row) -> str:
    """Why a row cannot run here; empty if it can."""
    reasons = [f"{module} is not installed" for module in row.needs if not _installed(module)]
    on_cpu = os.environ.get("MATRIX_DEVICE") == "cpu" and row.without_gpu
    if row.gpus and not on_cpu:
        usable, reason = cuda.available()
        if not usable:
            return f"GPU memory cannot be saved here: {reason}"
        if len(gpu.gpus()) < row.gpus:
            return f"{row.gpus} GPUs are needed, {len(gpu.gpus())} are here"
        if row.peers and not _peers():
            reasons.append("neither GPU reaches the other's memory")
    if row.compiler and not any(map(shutil.which, ("cc", "gcc", "clang"))):
        reasons.append("Triton needs a C compiler")
    if row.compiler and not (Path(sysconfig.get_path("include")) / "Python.h").exists():
        reasons.append("Triton needs Python's header files")
    return "; ".join(reasons)


def _installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # not even its package
        return False


def _peers() -> bool:
    import pynvml  # noqa: PLC0415 - after it is known that there are GPUs

    pynvml.nvmlInit()
    first, second = map(pynvml.nvmlDeviceGetHandleByIndex, (0, 1))
    # NVML_P2P_CAPS_INDEX_READ, of which nvidia-ml-py makes a tuple.
    return bool(pynvml.nvmlDeviceGetP2PStatus(first, second, 0) == pynvml.NVML_P2P_STATUS_OK)
