"""The start and end of a process tree in its own PID, mount and time namespaces.

Covers: the protocol with `gpuckpt-init` (init.c), host pids, killing a tree. Does not cover: CRIU (`engine/criu`), what a
kernel is (the daemon). See also: docs/decisions/processes.md.
"""

from __future__ import annotations

import errno
import logging
import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, cast

from ...errors import (
    CheckpointError,
    KernelLost,
    LimitReached,
    PrivilegeMissing,
    limit_reached,
)
from ...host import commands, core_files, doctor_remedies, processes
from ...wire.manifest_records import SCRATCH, LaunchSpec
from ..settings import EngineSettings
from . import (
    ferry_library,
    fresh_randomness,
    kept_secrets,
    mounts,
    outside_signals,
    server_files,
    user_namespaces,
)
from .tree import Tree
from .user_namespaces import Ids

logger = logging.getLogger(__name__)

_SSH_SETTINGS, _SSH_COPIES = "/etc/ssh/ssh_config.d", f"{SCRATCH}/ssh"
#: The range of random pids: below 32768, the pid_max of Linux before 6.14, which is shared by all namespaces.
_PID_RANGE = (2000, 24000)
_KEEPER_OFFSET, _KERNEL_OFFSET = 1, 2


class Namespaces:
    """A gpuckpt-init process that has made its namespaces and mounts and waits to continue."""

    def __init__(self, process: subprocess.Popen[bytes], errors: commands.ErrorOutput) -> None:
        self._process, self.errors = process, errors
        self._out = cast("IO[bytes]", process.stdout)
        self._in = cast("IO[bytes]", process.stdin)
        self.init_pid = 0

    def expect(self, keyword: str) -> str:
        """Read the next line, which must begin with `keyword`; return its rest."""
        line = self._out.readline().decode(errors="replace").strip()
        head, _, rest = line.partition(" ")
        if head == keyword:
            return rest
        if head == "error":
            step, _, cause = rest.partition(": ")
            if cause == os.strerror(errno.EAGAIN):
                raise limit_reached(
                    errno.EAGAIN, CheckpointError("A kernel cannot be started."), step
                )
            if limit := doctor_remedies.namespace_limit(rest):
                raise LimitReached(limit.why, hint=f"Raise it: `{limit.fix}`.", details=rest)
            raise PrivilegeMissing(
                f"The namespaces of the kernel could not be made ({step}: {cause}).",
                hint="Run `jupyter gpuckpt doctor`: it names the right that is missing.",
            )
        raise CheckpointError(
            "gpuckpt-init ended unexpectedly.",
            hint="The details say what it printed; please report them.",
            details=f"expected {keyword!r}, got {line!r}\n{self.errors.text()}".rstrip(),
        )

    def go(self, last_pid: int, clocks: Sequence[int] = ()) -> None:
        """Let init continue when its scratch tmpfs is prepared. Its next process gets the pid `last_pid` + 1.

        `clocks`: the new readings of the monotonic clock and of the clock since boot, each as seconds and nanoseconds.
        """
        self._in.write(" ".join(["go", str(last_pid), *map(str, clocks)]).encode() + b"\n")
        self._in.flush()

    def close(self) -> None:
        """Close the pipes to init, which keeps running."""
        for stream in (self._in, self._out):
            with suppress(OSError):
                stream.close()
        self._process.wait()
        self.errors.close()

    def destroy(self) -> None:
        """Kill init and with it all processes in its namespaces."""
        if self.init_pid:
            kill_init(self.init_pid)
        self.close()


def _tmpfs_bytes() -> int:
    """Return the size limit of a tmpfs in bytes: all memory, because a tmpfs takes only what its files need, which the preflight counts."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def start_namespaces(  # noqa: PLR0913 - all but the first two by name
    settings: EngineSettings,
    mode: str,
    *,
    ids: Ids | None,
    exit_path: Path,
    private_shm: bool,
    io_uring: bool,
    options: Sequence[str],
    argv: Sequence[str],
    env: dict[str, str] | None = None,
    cwd: str | None = None,
    descriptors: Sequence[int] = (),
) -> Namespaces:
    """Start gpuckpt-init in `mode`; return when its mounts are made. No other process of the tree runs yet.

    `ids`: the kernel's ids in a user namespace of its own; None: it shares ours. `descriptors`: those that CRIU inherits.
    """
    exit_path.unlink(missing_ok=True)
    errors = commands.ErrorOutput()
    try:
        process = commands.spawn(
            [
                str(settings.init),
                mode,
                f"{ids.uid}:{ids.gid}" if ids else "-",
                str(exit_path),
                str(_tmpfs_bytes()),
                "private" if private_shm else "shared",
                "allowed" if io_uring else "refused",
                *options,
                "--",
                *argv,
            ],
            env=env,
            cwd=cwd,
            pass_fds=descriptors,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors.descriptor,
        )
    except commands.CommandFailed as error:
        errors.close()
        raise CheckpointError(
            "gpuckpt-init could not be started.",
            hint="Install jupyter-gpuckpt again: its compiled part is missing or was built for another machine.",
            details=str(error),
        ) from error
    namespaces = Namespaces(process, errors)
    try:
        namespaces.init_pid = int(namespaces.expect("init"))
        core_files.allow(namespaces.init_pid)
        namespaces.expect("ready")
        if ids is not None:
            _mount_ssh_settings(namespaces.init_pid)
    except BaseException:
        namespaces.destroy()
        raise
    return namespaces


def _mount_ssh_settings(init_pid: int) -> None:
    """Mount copies over ssh's included settings in the mount namespace of a kernel's init, if there are any; never raises.

    There root's files belong to nobody, and ssh refuses included files of other owners. So copies that belong to the kernel's user are
    mounted over the files that root's settings include. See man ssh_config, Include.
    """
    root = Path(f"/proc/{init_pid}/root")
    try:
        files = [path for path in (root / _SSH_SETTINGS[1:]).iterdir() if path.is_file()]
        if not files:
            return
        copies = root / _SSH_COPIES[1:]
        copies.mkdir(mode=0o755)
        for path in files:
            shutil.copyfile(path, copies / path.name)
            (copies / path.name).chmod(0o644)  # ssh checks the mode, too
        mounts.bind(init_pid, _SSH_COPIES, _SSH_SETTINGS)
    except (OSError, commands.CommandFailed) as error:
        # ssh is not installed, or this user may not read its settings.
        logger.debug("ssh's settings are not replaced: %s", error)


def launch(
    spec: LaunchSpec, settings: EngineSettings, exit_path: Path, jupyter_runtime_dir: str = ""
) -> Tree:
    """Start the kernel of `spec`; return when its process exists.

    The kernel gets a random pid in its namespace: libraries use the pid in names of shared objects, so no two kernels should have
    the same. Raises PrivilegeMissing where namespaces cannot be made, KernelLost when the program ended at once.
    """
    last = random.randrange(*_PID_RANGE)  # noqa: S311 - a name, not a secret
    env = ferry_library.environment(spec.env) if spec.gpu_copy == "own" else spec.env
    namespaces = start_namespaces(
        settings,
        "launch",
        ids=user_namespaces.for_launch(settings),
        exit_path=exit_path,
        private_shm=spec.private_shm,
        io_uring=spec.io_uring,
        options=[f"{spec.umask:o}", spec.log_path],
        argv=spec.argv,
        env=outside_signals.environment(env),
        cwd=spec.cwd,
    )
    try:
        root = Path(f"/proc/{namespaces.init_pid}/root")
        outside_signals.install(root)
        fresh_randomness.install(root)
        if spec.gpu_copy == "own":
            ferry_library.install(root)
        kept_secrets.install(root, spec.secrets)
        server_files.protect(namespaces.init_pid, jupyter_runtime_dir)
        namespaces.go(last)
        namespaces.expect("started")
        keeper = last + _KEEPER_OFFSET
        tree = find(namespaces.init_pid, keeper, last + _KERNEL_OFFSET, exit_path)
    except BaseException:
        namespaces.destroy()
        raise
    namespaces.close()
    return tree


def find(init_pid: int, keeper_nspid: int, kernel_nspid: int, exit_path: Path) -> Tree:
    """Find the tree below init by its host pids; wait a moment for a kernel that is just being forked."""
    deadline = time.monotonic() + 5
    while True:
        start = processes.start_time(init_pid)
        keeper = _child(init_pid, keeper_nspid)
        kernel = _child(keeper, kernel_nspid) if keeper else 0
        if start is not None and keeper and kernel:
            return Tree(init_pid, start, keeper, keeper_nspid, kernel, kernel_nspid, str(exit_path))
        if start is None or time.monotonic() > deadline or exit_path.exists():
            raise KernelLost(
                "The kernel's process ended right after it was started.",
                hint="The kernel's log file has the cause.",
                details=_exit_status(exit_path),
            )
        time.sleep(0.002)


def _exit_status(exit_path: Path) -> str:
    try:
        return f"wait status {exit_path.read_text().strip()}"
    except OSError:
        return "no exit status was written"


def _child(parent: int, nspid: int) -> int:
    return next((pid for pid in processes.children(parent) if processes.nspid(pid) == nspid), 0)


def alive(tree: Tree) -> bool:
    """Return whether the tree's init still runs (the same process, not a later one with its pid)."""
    return processes.still_alive(tree.init_pid, tree.init_start)


def watch(tree: Tree) -> int | None:
    """Return a descriptor that is readable when the tree's init has ended; None if it has. Raises OSError, which says nothing of it."""
    pidfd = processes.open_pidfd(tree.init_pid)
    if pidfd is None:
        return None
    try:
        if alive(tree):
            return pidfd
    except OSError:
        os.close(pidfd)
        raise
    os.close(pidfd)
    return None


def pids(tree: Tree) -> list[int]:
    """Return the host pids of the keeper and all its descendants, parents first."""
    return [tree.keeper_pid, *processes.descendants(tree.keeper_pid)]


def memory_bytes(tree: Tree) -> int:
    """Return the resident memory of the tree, with proportional shares of shared pages."""
    return sum(processes.memory(pid).proportional_bytes for pid in pids(tree))


def kill(tree: Tree, *, timeout: float = 10.0) -> None:
    """End the tree: SIGKILL to init ends every process of its PID namespace at once (man pid_namespaces).

    It returns when all are gone. A tree that has already ended is no error.
    """
    if alive(tree):
        kill_init(tree.init_pid, timeout=timeout)
    else:
        _reap(tree.init_pid)


def kill_init(init_pid: int, *, timeout: float = 10.0) -> None:
    """Kill an init and wait until it is gone; Linux first kills and reaps all other processes of its PID namespace."""
    with suppress(ProcessLookupError):
        os.kill(init_pid, signal.SIGKILL)
    wait_until(lambda: _reap(init_pid), timeout=timeout)


def _reap(init_pid: int) -> bool:
    """Return whether init is gone; reap it if it is our child (it is another's if an earlier daemon was its parent)."""
    try:
        return os.waitpid(init_pid, os.WNOHANG)[0] == init_pid
    except ChildProcessError:
        return processes.state(init_pid) in (None, "Z")


def wait_until(done: Callable[[], bool], *, timeout: float) -> bool:
    """Poll `done` with short sleeps; return whether it became true within `timeout` seconds."""
    deadline, pause = time.monotonic() + timeout, 0.0005
    while not done():
        if time.monotonic() > deadline:
            return False
        time.sleep(pause)
        pause = min(pause * 2, 0.02)
    return True
