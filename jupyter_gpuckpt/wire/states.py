"""The states of a kernel: the allowed transitions, and the effect of each verb in each state.

They are two total tables, tested cell by cell. No other code decides about states.
"""

from __future__ import annotations

from enum import StrEnum


class KernelState(StrEnum):
    """The state of a kernel."""

    STARTING = "starting"
    RUNNING = "running"
    SAVING = "saving"
    PARKING = "parking"
    PARKED = "parked"
    UNPARKING = "unparking"
    SUSPENDING = "suspending"
    SUSPENDED = "suspended"
    RESUMING = "resuming"
    LOST = "lost"


class Verb(StrEnum):
    """A request of a client for a kernel."""

    SAVE = "save"
    SUSPEND = "suspend"
    RESUME = "resume"
    INTERRUPT = "interrupt"
    KILL = "kill"
    END = "shut down"
    PARK = "park"


class Answer(StrEnum):
    """The daemon's answer to a verb."""

    DO = "do"  # start the operation, or deliver the signal
    NOTHING = "nothing"  # already so: succeed and change nothing
    WAIT = "wait"  # deliver after the operation in flight
    PREEMPT = "preempt"  # cancel the operation in flight, then do it
    BUSY = "busy"  # refused: the same operation is in flight (409, retryable)
    CONFLICT = "conflict"  # refused: makes no sense in this state (409)


_S, _V, _A = KernelState, Verb, Answer

TRANSITIONS: dict[KernelState, frozenset[KernelState]] = {
    _S.STARTING: frozenset({_S.RUNNING, _S.LOST}),
    _S.RUNNING: frozenset({_S.SAVING, _S.PARKING, _S.SUSPENDING, _S.LOST}),
    _S.SAVING: frozenset({_S.RUNNING, _S.PARKED, _S.SUSPENDING, _S.LOST}),
    _S.PARKING: frozenset({_S.PARKED, _S.RUNNING, _S.LOST}),
    _S.PARKED: frozenset({_S.PARKING, _S.UNPARKING, _S.SAVING, _S.SUSPENDING, _S.LOST}),
    _S.UNPARKING: frozenset({_S.RUNNING, _S.PARKED, _S.LOST}),
    _S.SUSPENDING: frozenset({_S.SUSPENDED, _S.RUNNING, _S.PARKED, _S.LOST}),
    _S.SUSPENDED: frozenset({_S.RESUMING}),
    _S.RESUMING: frozenset({_S.RUNNING, _S.SUSPENDED, _S.LOST}),
    _S.LOST: frozenset({_S.RESUMING}),
}

_ROW = tuple[Answer, ...]
_TABLE: dict[KernelState, _ROW] = {
    #                SAVE          SUSPEND       RESUME        INTERRUPT     KILL          END           PARK
    _S.STARTING: (_A.CONFLICT, _A.CONFLICT, _A.NOTHING, _A.DO, _A.DO, _A.CONFLICT, _A.CONFLICT),
    _S.RUNNING: (_A.DO, _A.DO, _A.NOTHING, _A.DO, _A.DO, _A.DO, _A.DO),
    _S.SAVING: (_A.BUSY, _A.PREEMPT, _A.NOTHING, _A.WAIT, _A.PREEMPT, _A.PREEMPT, _A.WAIT),
    _S.PARKING: (_A.WAIT, _A.WAIT, _A.WAIT, _A.WAIT, _A.PREEMPT, _A.WAIT, _A.NOTHING),
    _S.PARKED: (_A.DO, _A.DO, _A.DO, _A.WAIT, _A.DO, _A.DO, _A.DO),
    _S.UNPARKING: (_A.WAIT, _A.WAIT, _A.NOTHING, _A.WAIT, _A.PREEMPT, _A.WAIT, _A.WAIT),
    _S.SUSPENDING: (_A.CONFLICT, _A.NOTHING, _A.WAIT, _A.WAIT, _A.PREEMPT, _A.WAIT, _A.CONFLICT),
    _S.SUSPENDED: (_A.CONFLICT, _A.NOTHING, _A.DO, _A.NOTHING, _A.DO, _A.DO, _A.CONFLICT),
    _S.RESUMING: (_A.WAIT, _A.WAIT, _A.BUSY, _A.WAIT, _A.PREEMPT, _A.WAIT, _A.WAIT),
    _S.LOST: (_A.CONFLICT, _A.CONFLICT, _A.DO, _A.NOTHING, _A.DO, _A.DO, _A.CONFLICT),
}

#: States in which the kernel has a process that runs or will run again without a resume.
ALIVE = frozenset(set(KernelState) - {_S.SUSPENDED, _S.LOST})
#: States in which it has no process that could answer: its state is only in a snapshot.
ABSENT = frozenset({_S.SUSPENDED, _S.RESUMING, _S.LOST})
#: States in which the process exists, but its GPU memory is in RAM or being moved.
GPU_AWAY = frozenset({_S.PARKING, _S.PARKED, _S.UNPARKING})


def may_follow(now: KernelState, then: KernelState) -> bool:
    """Return whether a kernel may change from state `now` to `then`."""
    return then in TRANSITIONS[now]


def answer(state: KernelState, verb: Verb) -> Answer:
    """Return the daemon's answer to `verb` for a kernel in `state`."""
    return _TABLE[state][list(Verb).index(verb)]
