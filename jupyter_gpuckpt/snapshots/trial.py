"""The trial of the engine on a small program: launch, the system calls of a save, suspend, resume.

Rights, filters, limits and security modules have too many combinations to predict the result from settings. If a small program can
be saved and resumed, kernels can. Otherwise kernels are started without the engine, and the check reports the failed step, its cause
and the fix. The trial takes about 0.3 s; the daemon remembers a success until the next boot (`daemon.host_report`).
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from ..engine.settings import EngineSettings
from ..engine.tree import launch, user_namespaces
from ..engine.tree.tree import Tree
from ..errors import (
    CheckpointError,
    GpuCkptError,
    HostIncompatible,
    LimitReached,
    StoreError,
    StoreFull,
)
from ..host import doctor_remedies, privileges
from ..linux.disk_reserve import free_bytes
from ..linux.file_locks import holding, is_locked
from ..store.local import LocalStore
from ..wire.manifest_records import LaunchSpec, SaveOptions
from ..wire.progress import Progress
from ..wire.protocol import Check
from .resume import resume
from .save import save

#: The program's exit statuses: after the signal that ends it, and if no signal comes.
_SIGNALED, _TIMED_OUT = 77, 78
#: The time after which the program ends by itself, in case the daemon is gone.
_LIFE_SECONDS = 120
#: The timeouts of the program's messages and of CRIU's progress. A client waits half a minute for a daemon.
_SECONDS, _STALL_SECONDS = 12, 7
#: With less free space on the disk the program's output could be missing as well as its snapshot.
_DISK_BYTES = 16 << 20
_PREFIX = "trial-"
_PROGRAM = f"""
import signal, sys, threading
# The thread inherits the mask, so this comes first. Otherwise a signal just after the resume, before the main thread waits for
# it, kills the program.
signal.pthread_sigmask(signal.SIG_BLOCK, {{signal.SIGUSR1}})
threading.Thread(target=threading.Event().wait, daemon=True).start()
print("ready", flush=True)
sys.exit({_SIGNALED} if signal.sigtimedwait({{signal.SIGUSR1}}, {_LIFE_SECONDS}) else {_TIMED_OUT})
"""


def checks(settings: EngineSettings, directory: Path) -> Iterator[Check]:
    """Yield the result of each step, up to the first that failed. Temporary files are in `directory`.

    A step that failed for lack of memory or disk space shows nothing about this machine's rights and fails no check.
    """
    step = "namespaces"
    try:
        with _scratch(directory) as scratch, _subjects() as trees:
            settings = msgspec.structs.replace(
                settings, spill_dir=scratch / "spill", stall_seconds=_STALL_SECONDS
            )
            spec = _spec(scratch)
            tree = launch.launch(spec, settings, scratch / "exit-1")
            trees.append(tree)
            yield Check(step, True, _namespaces(tree), required=True)
            _wait(scratch / "log", "ready")
            step = "system calls"
            yield (tried := _system_calls(tree))
            if tried.ok is False:
                return
            step, store = "suspend", LocalStore(scratch / "store")
            try:
                saved = save(
                    tree, spec, store, settings, SaveOptions(stop=True), progress=Progress()
                ).manifest
                yield Check(step, True, "A small program was suspended.", required=True)
                step = "resume"
                exit_path = scratch / "exit-2"
                trees.append(
                    resume(saved, store, settings, exit_path=exit_path, progress=Progress()).tree
                )
            finally:
                store.close()
            with suppress(ProcessLookupError):
                os.kill(trees[-1].kernel_pid, signal.SIGUSR1)
            _wait(exit_path)
            status = os.waitstatus_to_exitcode(int(exit_path.read_text()))
            if status != _SIGNALED:
                raise CheckpointError(f"The program ended with status {status} after its resume.")
            yield Check(step, True, f"It was resumed and ran on{_as_whom()}.", required=True)
    except (StoreError, HostIncompatible, OSError) as error:
        yield Check(step, None, f"Could not be tried: {error}")
    except GpuCkptError as error:
        yield _failure(step, error)


_LOST = {
    "namespaces": "Linux refused a namespace that kernels need",
    "system calls": "Linux refused system calls that a save needs",
    "suspend": "A small program could not be suspended",
    "resume": "A small program was suspended, but could not be resumed",
}


def _failure(step: str, error: GpuCkptError) -> Check:
    if isinstance(error, LimitReached):
        fix = doctor_remedies.find(error.details).fix
        return Check(step, False, error.message, fix, required=True)
    cause = f": {error.message}" if step != "namespaces" else f" ({_refused(error)})."
    remedy = doctor_remedies.find(cause)
    message = f"{_LOST[step]}{cause} {remedy.why}".rstrip()
    return Check(step, False, message, remedy.fix, required=True)


def _refused(error: GpuCkptError) -> str:
    """Return the failed step of gpuckpt-init with Linux's reason, from the parentheses of the error's message."""
    _, _, rest = error.message.partition("(")
    return rest.rpartition(")")[0] or error.message


def _system_calls(tree: Tree) -> Check:
    answers = privileges.attempts(tree.kernel_pid)
    refused = [f"{name} ({error})" for name, error in answers.items() if error]
    if not refused:
        return Check("system calls", True, f"Allowed: {', '.join(answers)}.", required=True)
    remedy = doctor_remedies.find()
    message = f"{_LOST['system calls']}: {', '.join(refused)}. {remedy.why}".rstrip()
    return Check("system calls", False, message, remedy.fix, required=True)


def _namespaces(tree: Tree) -> str:
    own = " and a user namespace" if user_namespaces.has_own(tree.init_pid) else ""
    return f"Kernels get PID, mount and time namespaces{own}."


def _as_whom() -> str:
    return "" if os.geteuid() == 0 else f"; this works as an ordinary user (uid {os.geteuid()})"


def _spec(scratch: Path) -> LaunchSpec:
    return LaunchSpec(
        kernel_id="trial",
        argv=[sys.executable, "-I", "-S", "-c", _PROGRAM],
        env=dict(os.environ),
        cwd=str(scratch),
        log_path=str(scratch / "log"),
    )


def _wait(path: Path, text: str = "") -> None:
    def has_text() -> bool:
        return path.exists() and text in path.read_text()

    if not launch.wait_until(has_text, timeout=_SECONDS):
        raise CheckpointError(f"The program printed nothing for {_SECONDS} s.")


@contextmanager
def _scratch(directory: Path) -> Iterator[Path]:
    """Yield a temporary directory for the trial, and remove those of killed trials. Raises StoreFull if there is no room for one."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    if (free := free_bytes(directory)) < _DISK_BYTES:
        raise StoreFull(f"The disk is full: {free >> 20} MB are free in {directory}.")
    for left in directory.glob(f"{_PREFIX}*"):
        with suppress(OSError):
            is_old = time.time() - left.stat().st_mtime > 10 * _LIFE_SECONDS
            # The lock shows that a trial runs, whatever the time of day is.
            if is_old and not is_locked(left):
                shutil.rmtree(left, ignore_errors=True)
    with (
        tempfile.TemporaryDirectory(
            prefix=_PREFIX, dir=directory, ignore_cleanup_errors=True
        ) as made,
        holding(Path(made)),
    ):
        yield Path(made)


@contextmanager
def _subjects() -> Iterator[list[Tree]]:
    """Yield a list for started trees, and kill all of them at the end."""
    trees: list[Tree] = []
    try:
        yield trees
    finally:
        for tree in trees:
            launch.kill(tree)
