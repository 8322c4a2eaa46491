"""The checks of this machine that the doctor runs.

Each check yields a sentence with the finding and, if it fails, the cause and the one command that fixes it. A failed check is a
value, not an exception; `report` also handles a check that raises. The report is data: the command line, the REST API and the tests
use the same one.
"""

from __future__ import annotations

import fcntl
import importlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

from ..wire.protocol import Check, HostReport
from . import criu_program, gpu, limits, pagemap_scan, privileges, processes

#: The oldest driver (CUDA 13) with which cuda-bindings 13 works.
CUDA_13_DRIVER = 580
#: The free disk space below which the check of the store fails.
LOW_BYTES = 2 << 30

#: CRIU sees at most this much memory of a process whose large areas are hidden (engine/criu/hidden_pages.py).
_VISIBLE_BYTES = 1 << 30

#: Brings the wheels of this project and of CRIU, which `make wheels` has put into a folder.
INSTALL = "pip install --find-links dist 'jupyter-gpuckpt[criu]'"
#: A command for the shell from which Jupyter is started.
MORE_DESCRIPTORS = "sudo prlimit --pid $$ --nofile=1048576:1048576"
MORE_DESCRIPTORS_CONTAINER = "docker run --ulimit nofile=1048576:1048576 ..."
ELSEWHERE = "export JUPYTER_GPUCKPT_DATA_DIR=/some/other/folder"


class CheckedFiles(NamedTuple):
    """The files that the checks examine: CRIU (`criu_program.find`), the program that starts kernels, the snapshots' folder.

    The folder need not exist yet. Without CRIU its check fails.
    """

    criu: Path | None
    init: Path
    store: Path


def platform(_: CheckedFiles) -> Iterator[Check]:
    """Check for the one platform on which CRIU and the injector run."""
    system = os.uname()
    good = system.sysname == "Linux" and system.machine == "x86_64"
    message = f"{system.sysname} {system.release} on {system.machine}."
    if not good:
        message = f"This is {message[:-1]}; kernels can be saved on Linux on x86_64 only."
    yield Check("platform", good, message, required=True)


def criu(files: CheckedFiles) -> Iterator[Check]:
    """Check that CRIU is installed and new enough."""
    version = criu_program.version(files.criu) if files.criu else None
    if not criu_program.usable(version):
        yield Check("criu", False, _criu_missing(files.criu), INSTALL, required=True)
        return
    message = f"CRIU {criu_program.dotted(version)}: {files.criu}."
    yield Check("criu", True, message, required=True)


def _criu_missing(named: Path | None) -> str:
    found = dict.fromkeys([*([named] if named else []), *criu_program.candidates()])
    seen = [f"{path} ({criu_program.dotted(criu_program.version(path))})" for path in found]
    return (
        f"CRIU, the program that saves processes, is needed in version"
        f" {criu_program.dotted(criu_program.MINIMUM)} or newer"
        + (f"; found: {', '.join(seen)}." if seen else " and was not found.")
    )


def init(files: CheckedFiles) -> Iterator[Check]:
    """Check that gpuckpt-init, which runs every kernel, is installed."""
    if os.access(files.init, os.X_OK):
        yield Check("init", True, f"The kernels' init: {files.init}.", required=True)
    else:
        message = f"The kernels' init is missing or not executable: {files.init}."
        yield Check("init", False, message, INSTALL, required=True)


def descriptors(_: CheckedFiles) -> Iterator[Check]:
    """Check up to which size a process can be saved the fast way: CRIU needs descriptors for memory that is not hidden from it."""
    largest = limits.largest_skeleton_bytes()
    count = limits.dump_descriptors()
    hiding = pagemap_scan.is_supported()
    every = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if largest >= (_VISIBLE_BYTES if hiding else every):
        message = f"Processes of any size are saved the fast way ({count} descriptors)."
        yield Check("descriptors", True, message)
        return
    fix = MORE_DESCRIPTORS_CONTAINER if privileges.in_container() else MORE_DESCRIPTORS
    memory = "scattered memory" if hiding else "CPU memory"
    message = (
        f"Processes with up to {largest / 1e9:.1f} GB of {memory} are saved the fast way,"
        f" larger ones through files, which takes longer ({count} descriptors)."
    )
    yield Check("descriptors", False, message, fix)


def memory(_: CheckedFiles) -> Iterator[Check]:
    """Check how much memory is available for a save."""
    free = processes.mem_available() / 1e9
    message = f"{free:.1f} GB are available; a save takes as much as the kernel holds on GPUs."
    yield Check("memory", None, message)


def memory_files(_: CheckedFiles) -> Iterator[Check]:
    """Check that /dev/shm is a tmpfs."""
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    kinds = {fields[1]: fields[2] for fields in mounts}
    shared = "/dev/shm"  # noqa: S108 - the folder itself is checked
    if kinds.get(shared) == "tmpfs":
        size = shutil.disk_usage(shared).total
        yield Check(shared, True, f"A tmpfs of {size / 1e9:.1f} GB.")
    else:
        fix = f"sudo mount -t tmpfs -o mode=1777 tmpfs {shared}"
        yield Check(shared, False, "No tmpfs: programs that share memory may fail.", fix)


def store(files: CheckedFiles) -> Iterator[Check]:
    """Check that the store's folder is writable, that its files can be locked, and that there is room."""
    # os.path.exists is False, not an error, below a folder that may not be read.
    there = next(path for path in [files.store, *files.store.parents] if os.path.exists(path))
    if not os.access(there, os.W_OK | os.X_OK):
        message = f"The snapshots' folder {files.store} cannot be written."
        yield Check("store", False, message, ELSEWHERE, required=True)
        return
    if refused := _locks_refused(there):
        message = f"Files in {there}, where the snapshots go, cannot be locked ({refused})."
        yield Check("store", False, message, ELSEWHERE, required=True)
        return
    free = shutil.disk_usage(there).free
    message = f"{free / 1e9:.1f} GB are free for snapshots in {files.store}."
    yield Check(
        "store",
        free >= LOW_BYTES,
        message,
        "" if free >= LOW_BYTES else "jupyter gpuckpt rm SNAPSHOT",
    )


def _locks_refused(folder: Path) -> str:
    """Return why the locks of the daemon and of its database fail for a file in `folder`; empty if both work."""
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".gpuckpt-lock-") as file:
        for lock in (fcntl.flock, fcntl.lockf):
            try:
                lock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                return f"{lock.__name__}: {error.strerror}"
    return ""


def nvidia(_: CheckedFiles) -> Iterator[Check]:
    """Check what saving GPU memory needs. Without a driver, kernels without GPU memory can be saved."""
    version = gpu.driver_version()
    if not version:
        why = gpu.unavailable_reason()
        yield Check("nvidia driver", None, f"No NVIDIA driver answers ({why}).")
        return
    major = int(version.split(".")[0])
    message, fix = f"NVIDIA driver {version}.", ""
    if major < gpu.MINIMUM_DRIVER:
        oldest = gpu.MINIMUM_DRIVER
        message = f"NVIDIA driver {version} cannot save GPU memory; {oldest} or newer can."
        fix = f"sudo apt-get install nvidia-driver-{CUDA_13_DRIVER}"
    yield Check("nvidia driver", not fix, message, fix)
    names = [gpu.described(device) for device in gpu.gpus()]
    yield Check("gpus", bool(names), f"{', '.join(names) or 'The driver shows no GPU'}.")
    problem = _bindings_problem()
    wanted = ">=13.0.2" if major >= CUDA_13_DRIVER else ">=12.8,<13"
    yield Check(
        "cuda-bindings",
        not problem,
        problem or "The Python package cuda-bindings has the checkpoint functions.",
        f"pip install 'cuda-bindings{wanted}'" if problem else "",
    )


def _bindings_problem() -> str:
    try:
        driver = importlib.import_module("cuda.bindings.driver")
    except ImportError as error:
        return f"The Python package cuda-bindings cannot be imported: {error}."
    lacking = [name for name in gpu.CHECKPOINT_FUNCTIONS if not hasattr(driver, name)]
    return f"cuda-bindings is too old: no {lacking[0]}." if lacking else ""


def container(_: CheckedFiles) -> Iterator[Check]:
    """Check conditions that matter only in a container."""
    kind = privileges.in_container()
    if kind:
        message = f"This looks like a container ({kind}): when it stops, all its processes end."
        yield Check("container", None, message)


#: All checks, in the order of the report. The first required one that fails is the reason that users see.
ALL: tuple[Callable[[CheckedFiles], Iterator[Check]], ...] = (
    *(platform, criu, init, store, descriptors, memory, memory_files),
    *(nvidia, container),
)


def report(files: CheckedFiles, trial: Callable[[], Iterable[Check]]) -> HostReport:
    """Run all checks of this machine and return the report. This takes about 0.1 s without a GPU and never raises.

    `trial` tries the engine itself (`snapshots.trial`); it runs last, and only if no required check has failed.
    `engine_available` is False if a required check fails; reason and hint are then those of the first.
    """
    found: list[Check] = []
    for run in ALL:
        found += _survived(run.__name__.replace("_", " "), partial(run, files))
    if _failed(found) is None:
        found += _survived("trial", trial, required=True)
    failed = _failed(found)
    if failed is None:
        return HostReport(engine_available=True, reason="", hint="", checks=found)
    hint = (
        f"This helps: `{failed.fix}`" if failed.fix else "`jupyter gpuckpt doctor` shows details."
    )
    return HostReport(engine_available=False, reason=failed.message, hint=hint, checks=found)


def _failed(found: Iterable[Check]) -> Check | None:
    return next((check for check in found if check.required and check.ok is False), None)


def _survived(
    name: str, run: Callable[[], Iterable[Check]], *, required: bool = False
) -> Iterator[Check]:
    """Run a check that may raise, so that the others go on. One that is `required` has failed then."""
    try:
        yield from run()
    except Exception as error:
        message = f"Could not be checked: {type(error).__name__}: {error}."
        yield Check(name, False if required else None, message, required=required)
