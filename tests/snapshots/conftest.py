"""A program under the engine that says what it holds, for tests: the kernel without Jupyter."""

from __future__ import annotations

import itertools
import logging
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal, Protocol

import pytest

from jupyter_gpuckpt.engine.memory.tracked_kernels import TrackedKernels
from jupyter_gpuckpt.engine.settings import EngineSettings
from jupyter_gpuckpt.engine.tree import launch
from jupyter_gpuckpt.engine.tree.tree import Tree
from jupyter_gpuckpt.snapshots import unwritten_memory
from jupyter_gpuckpt.snapshots.resume import Resumed, resume
from jupyter_gpuckpt.snapshots.save import Saved, save
from jupyter_gpuckpt.snapshots.unpacked_snapshots import UnpackedSnapshots
from jupyter_gpuckpt.store.local import LocalStore
from jupyter_gpuckpt.wire.manifest_records import Cause, LaunchSpec, SaveOptions
from jupyter_gpuckpt.wire.progress import Progress
from jupyter_gpuckpt.wire.protocol import ResumeRequest
from tests.conftest import PATIENCE


class Run(Protocol):
    """The type of the fixture `run`."""

    def __call__(
        self,
        code: str,
        *,
        engine: EngineSettings = ...,
        store: LocalStore = ...,
        io_uring: bool = ...,
        keep_files: Sequence[str] = ...,
        gpu_copy: Literal["driver", "own"] = ...,
    ) -> Program:
        """Start `code`."""


class Program:
    """Python code that runs under the engine. Its standard output is the log, read with `lines`."""

    def __init__(
        self,
        code: str,
        directory: Path,
        engine: EngineSettings,
        store: LocalStore,
        *,
        io_uring: bool = False,
        keep_files: Sequence[str] = (),
        gpu_copy: Literal["driver", "own"] = "driver",
    ) -> None:
        self.engine, self.store, self._directory = engine, store, directory
        self.log = directory / "program.log"
        self._generations = itertools.count(1)
        self.spec = LaunchSpec(
            kernel_id="program",
            argv=[sys.executable, "-c", textwrap.dedent(code)],
            # Unbuffered, a line is written piece by piece, and a snapshot may lie between the pieces.
            env={k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"},
            cwd=str(directory),
            log_path=str(self.log),
            io_uring=io_uring,
            keep_files=list(keep_files),
            gpu_copy=gpu_copy,
        )
        self.tree = launch.launch(self.spec, engine, self._exit_path())
        self._trees = [self.tree]
        self.tracked = TrackedKernels()

    def _exit_path(self) -> Path:
        return self._directory / f"exit-{next(self._generations)}"

    def lines(self, *, more_than: int = 0, seconds: float = PATIENCE) -> list[str]:
        """Return the log's complete lines, once there are more than `more_than`."""
        deadline = time.monotonic() + seconds
        while True:
            text = self.log.read_text() if self.log.exists() else ""
            found = text[: text.rfind("\n") + 1].splitlines()
            if len(found) > more_than:
                return found
            if time.monotonic() > deadline:
                raise AssertionError(f"the program said nothing more after {found[-3:]}")
            time.sleep(0.005)

    def fresh_line(self) -> str:
        """Return a line that was begun after this call."""
        return self.lines(more_than=len(self.lines(more_than=0)) + 1)[-1]

    def save(
        self,
        *,
        stop: bool = False,
        progress: Progress | None = None,
        cause: Cause = Cause.MANUAL,
        peer_access_off: bool = False,
    ) -> Saved:
        """Save, or suspend."""
        return save(
            self.tree,
            self.spec,
            self.store,
            self.engine,
            SaveOptions(stop=stop, name="program", cause=cause, peer_access_off=peer_access_off),
            writes=self.tracked.of(self.tree),
            progress=progress or Progress(),
        )

    def resume(
        self,
        snapshot_id: str,
        *,
        force: bool = False,
        is_copy: bool = False,
        unpacked: UnpackedSnapshots | None = None,
        progress: Progress | None = None,
    ) -> Resumed:
        """Bring it back from a snapshot. `unpacked`: what its resumes share. Several threads may do it at the same time."""
        resumed = resume(
            self.store.manifest(snapshot_id),
            self.store,
            self.engine,
            exit_path=self._exit_path(),
            request=ResumeRequest(force=force),
            is_copy=is_copy,
            unpacked=unpacked,
            progress=progress or Progress(),
        )
        self.follow(resumed.tree)
        return resumed

    def follow(self, tree: Tree) -> None:
        """Use a resumed tree as the program's from now on, and end it with the program."""
        self.tree = tree
        self._trees.append(tree)

    def end(self) -> None:
        """Kill it, in all that it was resumed in: an older snapshot may have been resumed beside it."""
        for tree in self._trees:
            launch.kill(tree)


@pytest.fixture(autouse=True)
def no_write_unseen(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Fail a test in which memory had changed that the tracking of writes believed unwritten; all of it is compared."""
    yield
    for when in ("setup", "call"):
        wrong = [one for one in caplog.get_records(when) if one.name == unwritten_memory.__name__]
        assert not [one for one in wrong if one.levelno >= logging.ERROR]


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    """Return a store of the test's own."""
    return LocalStore(tmp_path / "store")


@pytest.fixture
def run(engine: EngineSettings, store: LocalStore, tmp_path: Path) -> Iterator[Run]:
    """Start programs; they are killed after the test, whatever became of them."""
    started: list[Program] = []

    def start(
        code: str,
        *,
        engine: EngineSettings = engine,
        store: LocalStore = store,
        io_uring: bool = False,
        keep_files: Sequence[str] = (),
        gpu_copy: Literal["driver", "own"] = "driver",
    ) -> Program:
        directory = tmp_path / f"program-{len(started)}"
        directory.mkdir()
        started.append(
            Program(
                code,
                directory,
                engine,
                store,
                io_uring=io_uring,
                keep_files=keep_files,
                gpu_copy=gpu_copy,
            )
        )
        return started[-1]

    yield start
    for program in started:
        program.end()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Yield a file system of 30 MB."""
    path = tmp_path / "small"
    path.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=30m", "small", path], check=False)
    if mounted.returncode:
        pytest.skip("tmpfs cannot be mounted here")
    yield path
    subprocess.run(["umount", "--lazy", path], check=True)
