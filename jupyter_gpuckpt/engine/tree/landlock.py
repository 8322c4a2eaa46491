"""Landlock sandboxes of a tree's threads, which CRIU does not save: a resumed process would be free of its sandbox, without a word.

Linux shows the sandbox of a thread nowhere. But a thread in a sandbox may examine no process outside of it (man 7 landlock, "Ptrace
restrictions"), so the thread itself is made to ask for something that it could read otherwise: get_robust_list(2) of a process that
has no sandbox and no more rights than the thread. That takes 0.6 ms for each thread, so it is done only if init has seen that a
process entered a sandbox, or could not see it (`set_filter` in init.c).
"""

from __future__ import annotations

import ctypes
import errno
from functools import cache

from ...errors import KernelNotCheckpointable
from ...host import processes
from ...wire.manifest_records import SCRATCH
from ..injection.threads_held import ThreadsHeld
from ..injection.tracee import Tracee
from .launch import wait_until
from .tree import Tree

#: Exists until a process of the tree enters a sandbox; removed by init.
_UNUSED = f"{SCRATCH}/landlock-unused"
_NR_LANDLOCK_CREATE_RULESET, _VERSION = 444, 1
_NR_GET_ROBUST_LIST = 274
_STOP_SECONDS = 10.0
_CAP_SYS_PTRACE, _CAP_SYS_ADMIN = 1 << 19, 1 << 21


def refuse(tree: Tree, stopped: list[int]) -> None:
    """Raise KernelNotCheckpointable if a thread of these stopped processes is in a Landlock sandbox.

    Raises CheckpointError if one cannot be asked. The registers of all threads must be recorded: this process may be killed meanwhile.
    """
    if tree.inside(_UNUSED).exists() or not _is_supported():
        return
    for pid in stopped:
        asked = any(map(_may_have_one, processes.threads(pid))) and pid != tree.keeper_pid
        if asked and _has_one(pid, tree):
            raise KernelNotCheckpointable(
                f"A process of the kernel runs in a sandbox of its own (Landlock): {processes.name(pid)}.",
                hint="End it, or start it without its sandbox, then try again.",
                details=f"process {pid} ({processes.name(pid)})",
            )


@cache
def _is_supported() -> bool:
    libc = ctypes.CDLL(None)
    return bool(libc.syscall(_NR_LANDLOCK_CREATE_RULESET, None, 0, _VERSION) > 0)


def _may_have_one(tid: int) -> bool:
    """Return whether a thread may have entered a sandbox: that takes no_new_privs or a capability (man landlock_restrict_self)."""
    fields = processes.status(tid)
    return fields.get("NoNewPrivs") == "1" or bool(_capabilities(fields, "CapPrm") & _CAP_SYS_ADMIN)


def _has_one(pid: int, tree: Tree) -> bool:
    """Ask each thread of a stopped process, and wait until all are stopped again, as CRIU expects them."""
    with ThreadsHeld(pid) as held:
        found = any(_is_in_sandbox(tracee, tree) for tracee in held.tracees())
    wait_until(
        lambda: all(
            processes.state(tid) in ("T", "Z", "X", None) for tid in processes.threads(pid)
        ),
        timeout=_STOP_SECONDS,
    )
    return found


def _is_in_sandbox(tracee: Tracee, tree: Tree) -> bool:
    """Ask a held thread for the keeper, which has no sandbox, and, if it may not know, for itself, which any thread may."""
    if not _has_its_rights(processes.status(tracee.tid), processes.status(tree.keeper_pid)):
        return False
    own = processes.nspid(tracee.pid) or 0
    return _may_not_ask(tracee, tree.keeper_nspid) and not _may_not_ask(tracee, own)


def _has_its_rights(asking: dict[str, str], asked: dict[str, str]) -> bool:
    """Return whether a process without a sandbox may examine another one (man 2 ptrace, "Ptrace access mode checking")."""
    if _capabilities(asking, "CapEff") & _CAP_SYS_PTRACE:
        return True
    fewer = _capabilities(asked, "CapPrm") & ~_capabilities(asking, "CapPrm")
    return not fewer and all(asking.get(ids) == asked.get(ids) for ids in ("Uid", "Gid"))


def _capabilities(fields: dict[str, str], name: str) -> int:
    return int(fields.get(name, "0"), 16)


def _may_not_ask(tracee: Tracee, nspid: int) -> bool:
    try:
        # Linux compares rights before it finds that there is no address for the answer.
        tracee.syscall(_NR_GET_ROBUST_LIST, nspid, 0, 0)
    except OSError as error:
        return error.errno == errno.EPERM
    return False
