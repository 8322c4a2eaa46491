"""Facts that only the thread itself can be asked for: a table of system calls that is executed in it (`injection/call_tables.py`)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cache

from ..injection.call_tables import Call, Result, Table
from .fact_records import Values
from .proc_facts import LOCKED_WHEN_USED, OWN_CWD, OWN_UMASK

_NR_SIGACTION, _NR_PERSONALITY, _NR_PRCTL, _NR_ARCH_PRCTL, _NR_SET_MEMPOLICY = (
    13,
    135,
    157,
    158,
    238,
)
_NR_GET_MEMPOLICY, _NR_KEYCTL, _NR_MEMBARRIER = 239, 250, 324
_NR_CHDIR, _NR_UMASK, _NR_UNSHARE, _CLONE_FS = 80, 95, 272, 0x200
_NR_MLOCK2, _MLOCK_ONFAULT = 325, 1
_KEYCTL_READ, _THREAD_KEYRING, _PROCESS_KEYRING, _SESSION_KEYRING = 11, -1, -2, -3
_MEMBARRIER_GET_REGISTRATIONS = 1 << 9
_GET_PERSONALITY = 0xFFFFFFFF
_ARCH_GET_CPUID, _ARCH_SET_CPUID = 0x1011, 0x1012
_GET_SPECULATION, _SET_SPECULATION = 52, 53
#: Bits of PR_GET_SPECULATION_CTRL: the thread may choose, and speculation is on.
_MAY_CHOOSE, _SPECULATES = 1, 2
_SIGTRAP = 5
#: Bytes of `struct sigaction` of the system call.
_ACTION_BYTES = 32
#: The most NUMA nodes of a memory policy.
_NODES = 1024
_KEY_BYTES = 4

#: Fact -> the call that tells it: by its result, or by what it writes.
_OF_PROCESS = {
    "dumpable": Call(_NR_PRCTL, (3,)),
    "child subreaper": Call(_NR_PRCTL, (37, 0), 1, bytes(4)),
    "huge pages disabled": Call(_NR_PRCTL, (42,)),
    "memory deny write execute": Call(_NR_PRCTL, (66,)),
    "memory merge": Call(_NR_PRCTL, (68,)),
    "barriers": Call(_NR_MEMBARRIER, (_MEMBARRIER_GET_REGISTRATIONS,)),
    # CRIU's last trap in a task makes Linux forget what the program has chosen for SIGTRAP.
    "action of SIGTRAP": Call(_NR_SIGACTION, (_SIGTRAP, 0, 0, 8), 2, bytes(_ACTION_BYTES)),
    "process keyring": Call(_NR_KEYCTL, (_KEYCTL_READ, _PROCESS_KEYRING)),
}
_OF_THREAD = {
    "personality": Call(_NR_PERSONALITY, (_GET_PERSONALITY,)),
    "death signal": Call(_NR_PRCTL, (2, 0), 1, bytes(4)),
    "keep capabilities": Call(_NR_PRCTL, (7,)),
    "time stamp counter": Call(_NR_PRCTL, (25, 0), 1, bytes(4)),
    "secure bits": Call(_NR_PRCTL, (27,)),
    "timer slack": Call(_NR_PRCTL, (30,)),
    "machine check policy": Call(_NR_PRCTL, (34,)),
    "io flusher": Call(_NR_PRCTL, (58,)),
    "cpuid": Call(_NR_ARCH_PRCTL, (_ARCH_GET_CPUID,)),
    "store bypass": Call(_NR_PRCTL, (_GET_SPECULATION, 0)),
    "indirect branches": Call(_NR_PRCTL, (_GET_SPECULATION, 1)),
    "flush of the L1 cache": Call(_NR_PRCTL, (_GET_SPECULATION, 2)),
    "memory policy": Call(_NR_GET_MEMPOLICY, (0, 0, _NODES), 0, bytes(4)),
    "memory nodes": Call(_NR_GET_MEMPOLICY, (0, 0, _NODES), 1, bytes(_NODES // 8)),
    "thread keyring": Call(_NR_KEYCTL, (_KEYCTL_READ, _THREAD_KEYRING)),
    "session keyring": Call(_NR_KEYCTL, (_KEYCTL_READ, _SESSION_KEYRING)),
}
#: Facts whose usual value is not 0; where one is missing, Linux does not know it.
ALWAYS_THERE = frozenset({"cpuid", "dumpable", "machine check policy", "timer slack"})
_SPECULATION = frozenset({"store bypass", "indirect branches", "flush of the L1 cache"})
_KEYRINGS = frozenset({"process keyring", "thread keyring", "session keyring"})


@cache
def table(*, main: bool) -> Table:
    """Return the calls for a thread. `main`: also those for its process."""
    return Table([*_OF_THREAD.values(), *(_OF_PROCESS.values() if main else ())])


def of_thread(results: Sequence[Result]) -> Values:
    """Return the facts of a thread that the results of `table` tell."""
    return _values(_OF_THREAD, results)


def of_process(results: Sequence[Result]) -> Values:
    """Return the facts of a process that the results of `table(main=True)` tell."""
    return _values(_OF_PROCESS, results[len(_OF_THREAD) :])


def _values(table: dict[str, Call], results: Sequence[Result]) -> Values:
    found = {}
    # A thread that is not the first one is not asked for its process.
    for (fact, call), result in zip(table.items(), results, strict=False):
        if result.value < 0:  # this Linux does not know it, or there is no such keyring
            continue
        if fact in _SPECULATION:
            # Without a choice it depends on the processor.
            chosen = result.value & _MAY_CHOOSE and result.value & ~_MAY_CHOOSE
            value = str(chosen if chosen != _SPECULATES else 0)
        elif fact in _KEYRINGS:
            value = str(result.value // _KEY_BYTES)
        elif call.pointer is None:
            value = str(result.value)
        else:
            value = hex(int.from_bytes(result.data, "little"))
        if fact in ALWAYS_THERE or value not in ("0", "0x0"):
            found[fact] = value
    return found


def setting(fact: str, values: Values) -> list[Call]:
    """Return the calls by which a thread sets a fact to that of `values` again; none if it cannot. Raises ValueError."""
    if fact in (OWN_CWD, OWN_UMASK, LOCKED_WHEN_USED) and fact in values:
        return _setting_of_shown(fact, values[fact])
    if fact not in _SETTABLE or (fact in ALWAYS_THERE and fact not in values):
        return []
    number = int(values.get(fact, "0"), 0)
    if fact in _POLICY:
        mode, nodes = (int(values.get(name, "0"), 0) for name in _POLICY)
        mask = nodes.to_bytes(_NODES // 8, "little")
        return [Call(_NR_SET_MEMPOLICY, (mode, 0, _NODES if nodes else 0), 1, mask)]
    if fact == _TRAP:
        action = number.to_bytes(_ACTION_BYTES, "little")
        return [Call(_NR_SIGACTION, (_SIGTRAP, 0, 0, 8), 1, action)]
    if fact in _SPECULATION:
        which = _OF_THREAD[fact].arguments[1]
        return [Call(_NR_PRCTL, (_SET_SPECULATION, which, number or _SPECULATES))]
    call, arguments = _SETTERS[fact]
    return [Call(call, (*arguments, number))]


def setting_lost(values: Values) -> list[Call]:
    """Return the calls by which a process sets what every restore changes to that of `values` again. Raises ValueError."""
    return setting(_TRAP, values) if int(values.get(_TRAP, "0"), 0) else []


def _setting_of_shown(fact: str, value: str) -> list[Call]:
    """Return the calls that set a fact which /proc shows."""
    if fact == LOCKED_WHEN_USED:
        areas = [tuple(int(end, 16) for end in area.split("-")) for area in value.split()]
        return [Call(_NR_MLOCK2, (start, end - start, _MLOCK_ONFAULT)) for start, end in areas]
    own = Call(_NR_CHDIR, (0,), 0, os.fsencode(value) + b"\0")
    if fact == OWN_UMASK:
        own = Call(_NR_UMASK, (int(value, 8),))
    return [Call(_NR_UNSHARE, (_CLONE_FS,)), own]


_TRAP = "action of SIGTRAP"
_POLICY = ("memory policy", "memory nodes")
#: Fact -> the call that sets it: its number and what comes before the value (include/uapi/linux/prctl.h).
_SETTERS = {
    "personality": (_NR_PERSONALITY, ()),
    "cpuid": (_NR_ARCH_PRCTL, (_ARCH_SET_CPUID,)),
    "death signal": (_NR_PRCTL, (1,)),
    "dumpable": (_NR_PRCTL, (4,)),
    "keep capabilities": (_NR_PRCTL, (8,)),
    "time stamp counter": (_NR_PRCTL, (26,)),
    "secure bits": (_NR_PRCTL, (28,)),
    "timer slack": (_NR_PRCTL, (29,)),
    # PR_MCE_KILL_SET
    "machine check policy": (_NR_PRCTL, (33, 1)),
    "child subreaper": (_NR_PRCTL, (36,)),
    "huge pages disabled": (_NR_PRCTL, (41,)),
    "io flusher": (_NR_PRCTL, (57,)),
    "memory deny write execute": (_NR_PRCTL, (65,)),
    "memory merge": (_NR_PRCTL, (67,)),
}
_SETTABLE = frozenset({_TRAP, *_POLICY, *_SPECULATION, *_SETTERS})
