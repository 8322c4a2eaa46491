"""A real ipykernel under the engine, in this process: no daemon and no server between the clock and what is measured."""

from __future__ import annotations

import ctypes
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.connect import write_connection_file
from msgspec.structs import replace

from jupyter_gpuckpt.engine.memory.tracked_kernels import TrackedKernels
from jupyter_gpuckpt.engine.settings import EngineSettings
from jupyter_gpuckpt.engine.tree import launch
from jupyter_gpuckpt.engine.tree.tree import Tree
from jupyter_gpuckpt.host import criu_program, privileges
from jupyter_gpuckpt.images import worker_processes
from jupyter_gpuckpt.snapshots.resume import resume
from jupyter_gpuckpt.snapshots.save import save
from jupyter_gpuckpt.store.local import LocalStore
from jupyter_gpuckpt.wire.manifest_records import LaunchSpec, Manifest, SaveOptions
from jupyter_gpuckpt.wire.progress import Progress

from . import memory_kinds
from .environment import wait_until_ready
from .machine import cores
from .room import GB, Skipped, folder

_PR_SET_CHILD_SUBREAPER = 36
_SECONDS = 300


@contextmanager
def scratch() -> Iterator[Path]:
    """Yield a directory on the disk, removed at the end."""
    path = Path(tempfile.mkdtemp(prefix="gpuckpt-bench-", dir=folder()))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def settings(directory: Path, threads: int = 0) -> EngineSettings:
    """Return the engine as the daemon has it. Raises Skipped where it cannot run."""
    criu = criu_program.find()
    if criu is None:
        raise Skipped("freezing kernels needs a CRIU (make setup)")
    threads = threads or min(cores(), 16)
    # As the daemon does: inits are reaped by us, and a process waits that makes the others.
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    worker_processes.warm_up(GB, threads)
    return EngineSettings(
        criu, directory / "spill", threads, user_namespace=not privileges.suffice()
    )


def holding(gigabytes: float, *kinds: str) -> str:
    """Code that makes `memory`, so many GB of these kinds of data."""
    source = Path(memory_kinds.__file__).read_text()
    return f"{source}\nmemory = fill({int(gigabytes * GB)}, {kinds!r})\n"


@dataclass
class EngineKernel:
    """A kernel, whichever process it is just now."""

    spec: LaunchSpec
    tree: Tree
    settings: EngineSettings
    client: BlockingKernelClient
    directory: Path
    tracked: TrackedKernels = field(default_factory=TrackedKernels)
    #: Whether saves read only what was written since the last one, as those of a daemon do.
    is_tracked: bool = True

    def run(self, code: str) -> None:
        """Run a cell; it must succeed."""
        reply = self.client.execute_interactive(
            code, timeout=_SECONDS, output_hook=lambda message: None
        )
        assert reply["content"]["status"] == "ok", reply["content"]

    def reply(self) -> None:
        """Wait until it answers."""
        message = self.client.execute("1")
        while self.client.get_shell_msg(timeout=_SECONDS)["parent_header"]["msg_id"] != message:
            pass

    def save(
        self, store: LocalStore, progress: Progress | None = None, *, stop: bool = False
    ) -> Manifest:
        """Return a snapshot in `store`; the kernel runs on, unless `stop` makes it a suspend."""
        return save(
            self.tree,
            self.spec,
            store,
            self.settings,
            SaveOptions(name="benchmark", stop=stop),
            writes=self.tracked.of(self.tree) if self.is_tracked else None,
            progress=progress or Progress(),
        ).manifest

    def resume(
        self,
        manifest: Manifest,
        store: LocalStore,
        threads: int = 0,
        *,
        one_process: bool = False,
    ) -> tuple[float, Progress]:
        """Seconds from the snapshot to the first reply, and what the engine's stages took. The kernel must be gone.

        `one_process`: the threads are those of one process, although several would be worth it.
        """
        progress = Progress()
        least = worker_processes._MIN_PROCESSES
        worker_processes._MIN_PROCESSES = 1 << 20 if one_process else least
        try:
            return self._resume(manifest, store, threads, progress), progress
        finally:
            worker_processes._MIN_PROCESSES = least

    def _resume(
        self, manifest: Manifest, store: LocalStore, threads: int, progress: Progress
    ) -> float:
        began = time.monotonic()
        self.tree = resume(
            manifest,
            store,
            replace(self.settings, threads=threads or self.settings.threads),
            exit_path=self.exit_path(),
            progress=progress,
        ).tree
        self.reply()
        return time.monotonic() - began

    def kill(self) -> None:
        """End its processes."""
        launch.kill(self.tree)

    def exit_path(self) -> Path:
        """Return a fresh file for the exit status of its next process."""
        return self.directory / f"exit-{time.monotonic_ns()}"


@contextmanager
def engine_kernel(directory: Path, setup: str) -> Iterator[EngineKernel]:
    """Yield a kernel that has run `setup`; its files lie in `directory`."""
    engine = settings(directory)
    file, connection = write_connection_file(str(directory / "kernel.json"))
    ports = [connection[f"{name}_port"] for name in ("shell", "iopub", "stdin", "control", "hb")]
    spec = LaunchSpec(
        kernel_id="benchmark",
        argv=[sys.executable, "-m", "ipykernel_launcher", "-f", file],
        env={**os.environ, "IPYTHONDIR": str(directory / "ipython")},
        cwd=str(directory),
        log_path=str(directory / "kernel.log"),
        own_ports=ports,
    )
    tree = launch.launch(spec, engine, directory / "exit")
    client = BlockingKernelClient(connection_file=file)
    kernel = EngineKernel(spec, tree, engine, client, directory)
    try:
        client.load_connection_file()
        client.start_channels()
        wait_until_ready(client)
        kernel.run(setup)
        yield kernel
    finally:
        client.stop_channels()
        with suppress(ProcessLookupError):
            kernel.kill()
