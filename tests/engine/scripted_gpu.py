"""A tree of real processes that use the scripted driver."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import pytest

from jupyter_gpuckpt.engine import park
from jupyter_gpuckpt.engine.gpu.driver import cuda
from jupyter_gpuckpt.engine.gpu.gpu_processes import DIRECTORY
from jupyter_gpuckpt.engine.tree import launch
from jupyter_gpuckpt.host import gpu, processes
from jupyter_gpuckpt.wire.progress import Progress
from tests.as_user import DEVICES
from tests.conftest import wait_for
from tests.engine.scripted_driver import ScriptedDriver, ScriptedNvml
from tests.snapshots.conftest import Program, run, store

__all__ = ["devices", "executable", "extras", "run", "scripted", "store"]

LENGTH = 4 << 20
ONE, OTHER = "GPU-00000000-0000-0000-0000-000000000001", "GPU-00000000-0000-0000-0000-000000000002"
#: A process with a context, two more of them as its children, and a forked child that has none.
CHILDREN = ("spawn", "fork", "spawn")


class Gpu(NamedTuple):
    """A tree whose processes use the scripted driver."""

    #: The processes name it on their command lines.
    folder: Path
    driver: ScriptedDriver
    nvml: ScriptedNvml
    program: Program

    def pids(self):
        """Of the processes with a context, in the tree's order."""
        return [pid for pid in launch.pids(self.program.tree) if self.number(pid) in self.numbers()]

    def numbers(self):
        """Return the same in the kernel's own namespace, in no order."""
        return {int(path.stem) for path in self.folder.glob("*.ticks")}

    def number(self, pid):
        return processes.nspid(pid)

    def all_numbers(self):
        return [self.number(pid) for pid in self.pids()]

    def forked(self):
        (pid,) = set(launch.pids(self.program.tree)) - {*self.pids(), self.program.tree.keeper_pid}
        return pid

    def done(self, number):
        """Return the steps of one process."""
        return [step for step, pid in self.driver.calls if pid == number]

    def check_running(self):
        """Every process has its GPU, knows its memory (else the driver had failed it), and its own code goes on."""
        for pid in self.pids():
            assert cuda.state(pid) is cuda.ProcessState.RUNNING
            assert cuda.is_cuda_process(pid)
            before = self.driver.ticks(pid)
            wait_for(lambda pid=pid, before=before: self.driver.ticks(pid) > before)
        assert list(self.program.tree.inside(DIRECTORY).glob("gpu-*")) == []

    def fail(self, step, which, error, left=None, *, once=False):
        """Let a step of a process fail from now on, or once; its number."""
        number = self.all_numbers()[which]
        self.driver.failures[step, number] = error, left
        if once:
            self.driver.once.add((step, number))
        return number

    def park(self, *, peer_access_off=False, keep_contexts=False):
        return park.park(
            self.program.tree,
            self.program.engine,
            gpu_bytes=0,
            peer_access_off=peer_access_off,
            keep_contexts=keep_contexts,
            progress=Progress(),
        )

    def park_contexts(self):
        return park.park_contexts(
            self.program.tree, self.program.engine, gpu_bytes=0, progress=Progress()
        )

    def unpark(self):
        park.unpark(self.program.tree, Progress())


@pytest.fixture(scope="module")
def executable(tmp_path_factory) -> Path:
    built = tmp_path_factory.mktemp("scripted") / "scripted-cuda"
    source = Path(__file__).with_name("scripted_cuda.c")
    subprocess.run(
        ["gcc", "-O1", "-Wall", "-Werror", "-pthread", "-ldl", "-o", built, source], check=True
    )
    return built


@pytest.fixture
def devices() -> Iterator[str]:
    """Yield the prefix of the paths of two files that stand for GPU devices, in a folder of /dev for an ordinary user."""
    folder = os.environ.get(DEVICES, "/dev")
    prefix = next(
        path
        for number in itertools.count()
        if not Path(path := f"{folder}/nvidia-scripted-{os.getpid()}-{number}-0").exists()
    )[:-1]
    paths = [Path(f"{prefix}{number}") for number in (0, 1)]
    try:
        for file in paths:
            file.write_bytes(bytes(4096))
    except OSError:
        pytest.skip("/dev cannot be written to")
    yield prefix
    for file in paths:
        file.unlink()


@pytest.fixture
def extras() -> tuple[str, ...]:
    """Files that the processes map beside what CUDA has (scripted_cuda.c); tests replace it by a parameter of this name."""
    return ()


def put_in(monkeypatch: pytest.MonkeyPatch, driver: ScriptedDriver, nvml: ScriptedNvml) -> None:
    """Let this process find these in place of cuda-bindings and NVML."""
    bindings = ModuleType("cuda.bindings")
    vars(bindings)["driver"] = driver
    monkeypatch.setitem(sys.modules, "cuda.bindings", bindings)
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    monkeypatch.setattr(gpu, "LIBRARY", "libc.so.6")  # any that is there
    # What was found before is forgotten.
    monkeypatch.setattr(cuda, "_found", [])
    monkeypatch.setattr(gpu, "_library", gpu._Library())


@pytest.fixture
def scripted(run, executable, devices, extras, tmp_path, monkeypatch) -> Gpu:
    folder = tmp_path / "cuda"
    folder.mkdir()
    for name in ("libcuda.so.1", *extras):
        (folder / name).write_bytes(bytes(4096))
    nvml = ScriptedNvml()
    nvml.add(ONE)
    driver = ScriptedDriver(folder, nvml)
    put_in(monkeypatch, driver, nvml)
    words = [str(executable), str(folder), devices, str(LENGTH), *CHILDREN]
    program = run(f"import os; os.execv({words[0]!r}, {words!r})")
    wait_for(lambda: len(list(folder.glob("*.ticks"))) == 3)
    found = Gpu(folder, driver, nvml, program)
    wait_for(lambda: len(launch.pids(program.tree)) == 5)
    assert len(found.pids()) == 3
    return found
