"""The programs of the golden snapshots: how they are started, and what they answer before and after."""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest

from jupyter_gpuckpt.engine.settings import EngineSettings
from jupyter_gpuckpt.engine.tree import launch
from jupyter_gpuckpt.engine.tree.tree import Tree
from jupyter_gpuckpt.host import commands
from jupyter_gpuckpt.wire.manifest_records import LaunchSpec
from tests.conftest import wait_for
from tests.engine.scripted_driver import ScriptedDriver, ScriptedNvml
from tests.engine.scripted_gpu import ONE, put_in

HERE = Path(__file__).parent
FILES = HERE / "files"
#: Where a program and its files lie, in the kernel's own /dev/shm: a resume needs no file of the machine.
FOLDER = "/dev/shm/golden"
#: The beginning of the paths of two files that stand for GPU devices.
DEVICES = "/dev/nvidia-golden-"
GPU_BYTES = 1 << 20


class Kind(NamedTuple):
    """A program: its source below `tests`, its arguments, and a pattern of the file whose presence says that it is ready."""

    source: str
    words: tuple[str, ...]
    ready: str


KINDS = {
    "idle": Kind("golden/program.c", (), "answer"),
    "busy": Kind("golden/program.c", ("busy",), "answer"),
    "gpu": Kind("engine/scripted_cuda.c", (FOLDER, DEVICES, str(GPU_BYTES)), "*.ticks"),
}


@contextmanager
def launched(
    settings: EngineSettings, folder: Path, kind: Kind
) -> Iterator[tuple[Tree, LaunchSpec]]:
    """Start a program under the engine, in an environment and with paths that say nothing of this machine."""
    program, source = folder / "program", HERE.parent / kind.source
    command = ["gcc", "-Os", "-Wall", "-Werror", "-static", "-s", "-pthread", "-o"]
    commands.run([*command, str(program), str(source)], timeout=300)
    begin = (
        f"mkdir {FOLDER}; cp {program} {FOLDER}/program; head -c 4096 /dev/zero >{FOLDER}/libcuda.so.1;"
        f" exec env -i {FOLDER}/program {' '.join(kind.words)} </dev/null >/dev/null 2>&1"
    )
    words = ["/bin/sh", "-c", begin]
    spec = LaunchSpec("program", words, {"PATH": "/usr/bin:/bin"}, "/", "/dev/null")
    tree = launch.launch(spec, settings, folder / "exit")
    try:
        wait_for(lambda: list(tree.inside(FOLDER).glob(kind.ready)))
        yield tree, spec
    finally:
        launch.kill(tree)


def asked(tree: Tree) -> list[str]:
    """Return the words of the answer of program.c: digest, counts of its own and of its child, what waits for it."""
    ends = [os.open(tree.inside(f"{FOLDER}/{name}"), os.O_RDWR) for name in ("ask", "answer")]
    try:
        os.write(ends[0], b"?")
        return os.read(ends[1], 4096).decode().rstrip("\n").split(" ", 3)
    finally:
        for end in ends:
            os.close(end)


class DriverInside(ScriptedDriver):
    """A scripted driver whose files lie in the /dev/shm of the kernel that uses it, wherever that is mounted just then."""

    @property
    def _folder(self) -> Path:
        for process in psutil.Process().children(recursive=True):
            found = Path(f"/proc/{process.pid}/root{FOLDER}")
            with suppress(OSError):
                if (found / "libcuda.so.1").exists():
                    return found
        return Path("/nowhere")

    @_folder.setter
    def _folder(self, folder: Path) -> None:
        pass


@contextmanager
def scripted_gpu() -> Iterator[DriverInside]:
    """Give this process a GPU and its driver, and the machine two devices, as long as a `with` block lasts."""
    nvml = ScriptedNvml()
    nvml.add(ONE)
    driver = DriverInside(HERE, nvml)
    paths = [Path(f"{DEVICES}{number}") for number in (0, 1)]
    if not os.access("/dev", os.W_OK):
        pytest.skip("/dev cannot be written to")
    lock = Path(tempfile.gettempdir()) / "gpuckpt-golden.lock"
    with lock.open("w") as file, pytest.MonkeyPatch.context() as patch:
        fcntl.flock(file, fcntl.LOCK_EX)  # the names of the devices are in the snapshot
        put_in(patch, driver, nvml)
        try:
            for path in paths:
                path.write_bytes(bytes(4096))
            yield driver
        finally:
            for path in paths:
                path.unlink(missing_ok=True)
