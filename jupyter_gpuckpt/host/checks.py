"""The doctor's single checks of this machine.

Each says in a sentence what is so and, where something fails, why and the one command that changes
it. A check that fails is a value, not an exception; `doctor.report` also survives one that raises.
"""

from __future__ import annotations

import importlib
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from ..protocol import Check
from . import commands, criu_program, gpu, limits, privileges, processes

#: From this driver on (CUDA 13) the newer line of cuda-bindings fits.
CUDA_13_DRIVER = 580
#: Less room than this for snapshots fails the check.
LOW_BYTES = 2 << 30

SETUP = "make setup"
AS_ROOT = 'sudo env "PATH=$PATH" jupyter lab --allow-root'
MORE_DESCRIPTORS = """sudo sh -c 'ulimit -n 1048576 && exec jupyter lab --allow-root'"""
#: A service made by systemd has all rights, whatever the caller was left with.
UNRESTRICTED = "sudo systemd-run --pty --same-dir jupyter lab --allow-root"
DOCKER = (
    "docker run --cap-add SYS_ADMIN --cap-add SYS_PTRACE --cap-add SYS_TIME --cap-add NET_ADMIN"
    " --cap-add SYS_RESOURCE --security-opt seccomp=unconfined --security-opt apparmor=unconfined"
    " --tmpfs /run ..."
)

#: What the probe tries, by check, and what people call it.
PROBED = {
    "namespaces": {
        "pid_namespace": "PID namespaces",
        "mount_namespace": "mount namespaces",
        "time_namespace": "time namespaces",
        "tmpfs": "mounting a tmpfs",
    },
    "userfaultfd": {"userfaultfd": "userfaultfd"},
    "ptrace": {"ptrace": "ptrace", "read_memory": "process_vm_readv", "compare": "kcmp"},
}
#: What is different without what can be done without.
_WITHOUT = {
    "userfaultfd": "A kernel comes back all the same, but its memory is written to the disk first."
}


class Place(NamedTuple):
    """What the checks look at; checks of what is None are left out (but a CRIU there must be)."""

    criu: Path | None
    init: Path | None
    store: Path | None


def platform(_: Place) -> Iterator[Check]:
    """The one platform for which CRIU and the injector are made."""
    system = os.uname()
    good = system.sysname == "Linux" and system.machine == "x86_64"
    message = f"{system.sysname} {system.release} on {system.machine}."
    if not good:
        message = f"This is {message[:-1]}; kernels can be saved on Linux on x86_64 only."
    yield Check("platform", good, message, required=True)


def rights(_: Place) -> Iterator[Check]:
    """Every capability that is needed, or user namespaces, which do without."""
    if privileges.suffice():
        yield Check("rights", True, "Root, with every capability that is needed.", required=True)
        return
    refused = privileges.probe().get("tmpfs", "could not be tried")
    if refused:
        message = (
            "Kernels need a user namespace of their own here, with mounts in it,"
            f" and Linux refuses one ({refused})."
        )
        fix = DOCKER if privileges.in_container() else AS_ROOT
        yield Check("rights", False, message, fix, required=True)
    else:
        message = f"No right is needed: kernels of user {os.geteuid()} get a user namespace each."
        yield Check("rights", True, message, required=True)


def criu(place: Place) -> Iterator[Check]:
    """The program that saves processes: there, new enough, and content with this machine."""
    version = criu_program.version(place.criu) if place.criu else None
    if not criu_program.usable(version):
        yield Check("criu", False, _criu_missing(place.criu), SETUP, required=True)
        return
    message = f"CRIU {criu_program.dotted(version)}: {place.criu}."
    yield Check("criu", True, message, required=True)
    if not privileges.suffice():
        yield Check("criu check", None, "Not tried: it needs root.")
        return
    try:
        commands.run([str(place.criu), "check"], timeout=criu_program.TIMEOUT)
    except commands.CommandFailed as error:
        errors = [line for line in error.tail.splitlines() if "Error" in line]
        message = f"CRIU's own check fails: {errors[0] if errors else error}"
        yield Check("criu check", False, message, _container_flags(), required=True)
    else:
        yield Check("criu check", True, "CRIU finds all it needs in this Linux.", required=True)


def _criu_missing(named: Path | None) -> str:
    found = dict.fromkeys([*([named] if named else []), *criu_program.candidates()])
    seen = [f"{path} ({criu_program.dotted(criu_program.version(path))})" for path in found]
    return (
        f"CRIU, the program that saves processes, is needed in version"
        f" {criu_program.dotted(criu_program.MINIMUM)} or newer"
        + (f"; found: {', '.join(seen)}." if seen else " and was not found.")
    )


def init(place: Place) -> Iterator[Check]:
    """The program above every kernel."""
    if place.init is None:
        return
    if os.access(place.init, os.X_OK):
        yield Check("init", True, f"The kernels' init: {place.init}.", required=True)
    else:
        message = f"The kernels' init is missing or not executable: {place.init}."
        yield Check("init", False, message, SETUP, required=True)


def system_calls(_: Place) -> Iterator[Check]:
    """What a child process of ours was allowed when it tried."""
    answers = privileges.probe()
    for name, parts in PROBED.items():
        refused = [
            f"{what} ({answers.get(key, 'could not be tried')})"
            for key, what in parts.items()
            if answers.get(key, "unknown")
        ]
        if refused:
            why, fix = _refusal()
            message = f"Refused: {', '.join(refused)}. {why} {_WITHOUT.get(name, '')}".rstrip()
            yield Check(name, False, message, fix, required=name not in _WITHOUT)
        else:
            message = f"Allowed: {', '.join(parts.values())}."
            yield Check(name, True, message, required=name not in _WITHOUT)


def _refusal() -> tuple[str, str]:
    if privileges.ptrace_scope() == privileges.NO_PTRACE:
        return "kernel.yama.ptrace_scope is 3, which only a reboot can change.", "sudo reboot"
    if privileges.in_container():
        return "The container's settings do it.", DOCKER
    if privileges.seccomp_filtered() or privileges.NEEDED - privileges.effective():
        return "This process was started with restrictions.", UNRESTRICTED
    return "Linux was built or set up without it.", ""


def descriptors(_: Place) -> Iterator[Check]:
    """How large a process may be for the fast way of saving."""
    largest = limits.largest_skeleton_bytes()
    count = limits.dump_descriptors()
    message = f"Processes with up to {largest / 1e9:.0f} GB of CPU memory are saved the fast way"
    if largest >= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"):
        yield Check("descriptors", True, f"{message} ({count} descriptors).")
        return
    in_docker = "docker run --ulimit nofile=1048576:1048576 --cap-add SYS_RESOURCE ..."
    fix = in_docker if privileges.in_container() else MORE_DESCRIPTORS
    message += f", larger ones through files, which takes longer ({count} descriptors)."
    yield Check("descriptors", False, message, fix)


def memory(_: Place) -> Iterator[Check]:
    """What is left for a save."""
    free = processes.mem_available() / 1e9
    message = f"{free:.1f} GB are available; saving a kernel needs what it holds on the GPU."
    yield Check("memory", None, message)


def memory_files(_: Place) -> Iterator[Check]:
    """File systems that should lie in memory."""
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    kinds = {fields[1]: fields[2] for fields in mounts}
    shared = "/dev/shm"  # noqa: S108 - the folder itself is what is looked at
    if kinds.get(shared) == "tmpfs":
        size = shutil.disk_usage(shared).total
        yield Check(shared, True, f"A tmpfs of {size / 1e9:.1f} GB.")
    else:
        fix = f"sudo mount -t tmpfs -o mode=1777 tmpfs {shared}"
        yield Check(shared, False, "No tmpfs: programs that share memory may fail.", fix)
    if kinds.get("/run") == "tmpfs":
        yield Check("/run", True, "A tmpfs: CRIU keeps there what it found out about Linux.")
    else:
        message = "No tmpfs: CRIU finds out anew what Linux can do, about 0.05 s each time."
        fix = "docker run --tmpfs /run ..." if privileges.in_container() else ""
        yield Check("/run", None, message, fix)


def store(place: Place) -> Iterator[Check]:
    """Room for snapshots."""
    if place.store is None:
        return
    # os.path.exists is False, not an error, below a folder that may not be looked into.
    there = next(path for path in [place.store, *place.store.parents] if os.path.exists(path))
    if not os.access(there, os.W_OK | os.X_OK):
        message = f"The snapshots' folder {place.store} cannot be written."
        fix = "export JUPYTER_GPUCKPT_DATA_DIR=/some/other/folder"
        yield Check("store", False, message, fix, required=True)
        return
    free = shutil.disk_usage(there).free
    message = f"{free / 1e9:.1f} GB are free for snapshots in {place.store}."
    yield Check(
        "store",
        free >= LOW_BYTES,
        message,
        "" if free >= LOW_BYTES else "jupyter gpuckpt rm SNAPSHOT",
    )


def nvidia(_: Place) -> Iterator[Check]:
    """What saving GPU memory takes. Without a driver, kernels without GPU memory can be saved."""
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


def container(_: Place) -> Iterator[Check]:
    """What holds only inside a container."""
    kind = privileges.in_container()
    if kind:
        message = f"This looks like a container ({kind}): when it stops, all its processes end."
        yield Check("container", None, message)


#: In the order of the report. The first required one that fails is the reason that people read.
ALL: tuple[Callable[[Place], Iterator[Check]], ...] = (
    *(platform, rights, criu, init, system_calls, descriptors, memory, memory_files),
    *(store, nvidia, container),
)


def _container_flags() -> str:
    return DOCKER if privileges.in_container() else ""
