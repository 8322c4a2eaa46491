"""What holds for the whole of both tables of `states.py`."""

from __future__ import annotations

import pytest

from jupyter_gpuckpt.wire.states import ALIVE, TRANSITIONS, Answer, KernelState, Verb, answer

S, V, A = KernelState, Verb, Answer
#: The states during an operation, and those to which it leads.
ENDS = {
    S.SAVING: set(),
    S.PARKING: {S.PARKED},
    S.UNPARKING: {S.RUNNING},
    S.SUSPENDING: {S.SUSPENDED},
    S.RESUMING: {S.RUNNING},
}
IN_FLIGHT = set(ENDS)
BEGUN = {V.SAVE: S.SAVING, V.SUSPEND: S.SUSPENDING, V.RESUME: S.RESUMING, V.PARK: S.PARKING}


def pairs(*wanted: Answer) -> set[tuple[KernelState, Verb]]:
    """Return the states and verbs with one of these answers."""
    return {(state, verb) for state in S for verb in V if answer(state, verb) in wanted}


def begun(state: KernelState) -> set[KernelState]:
    """Return the states of the operations that verbs begin in a state."""
    found = {BEGUN[verb] for one, verb in pairs(A.DO, A.PREEMPT) if one is state and verb in BEGUN}
    return {S.UNPARKING if state is S.PARKED and one is S.RESUMING else one for one in found}


def test_states_follow_by_the_begin_of_operations_by_their_end_or_by_their_failure() -> None:
    """A failed operation leads back to where it began."""
    for state in S:
        lost = {S.LOST} if state in ALIVE else set()
        if state in IN_FLIGHT:
            before = {one for one in set(S) - IN_FLIGHT if state in begun(one)}
            assert TRANSITIONS[state] == ENDS[state] | before | begun(state) | lost, state
        elif state is not S.STARTING:
            assert TRANSITIONS[state] == begun(state) | lost, state
    assert TRANSITIONS[S.STARTING] == {S.RUNNING, S.LOST}


def test_a_process_may_be_lost_at_any_time_and_only_a_resume_brings_one_back() -> None:
    assert {state for state in S if S.LOST in TRANSITIONS[state]} == ALIVE
    for state in set(S) - ALIVE:
        assert TRANSITIONS[state] == {S.RESUMING}
        assert answer(state, V.RESUME) is A.DO


def test_every_kernel_can_run_again() -> None:
    runs = {S.RUNNING}
    while more := {state for state in S if TRANSITIONS[state] & runs} - runs:
        runs |= more
    assert runs == set(S)


@pytest.mark.parametrize("state", KernelState)
def test_a_kernel_can_be_killed_in_every_state(state: KernelState) -> None:
    assert answer(state, V.KILL) is (A.PREEMPT if state in IN_FLIGHT else A.DO)


@pytest.mark.parametrize("state", KernelState)
def test_an_interrupt_is_never_refused(state: KernelState) -> None:
    runs = state in {S.STARTING, S.RUNNING}
    assert answer(state, V.INTERRUPT) is (A.DO if runs else A.WAIT if state in ALIVE else A.NOTHING)


@pytest.mark.parametrize("state", KernelState)
def test_a_shutdown_waits_for_operations_that_move_memory(state: KernelState) -> None:
    refused_or_canceled = {S.STARTING: A.CONFLICT, S.SAVING: A.PREEMPT}
    waits = A.WAIT if state in IN_FLIGHT else A.DO
    assert answer(state, V.END) is refused_or_canceled.get(state, waits)


def test_only_operations_and_gpu_memory_in_ram_are_waited_for() -> None:
    assert {state for state, _ in pairs(A.WAIT)} <= IN_FLIGHT | {S.PARKED}
    assert {verb for state, verb in pairs(A.WAIT) if state is S.PARKED} == {V.INTERRUPT}


def test_only_a_save_is_canceled_for_something_else_than_a_kill() -> None:
    assert {pair for pair in pairs(A.PREEMPT) if pair[1] is not V.KILL} == {
        (S.SAVING, V.SUSPEND),
        (S.SAVING, V.END),
    }


def test_what_is_so_already_is_not_done_again() -> None:
    nothing = pairs(A.NOTHING)
    assert {verb for _, verb in nothing} == {V.SUSPEND, V.PARK, V.RESUME, V.INTERRUPT}
    assert {s for s, verb in nothing if verb is V.SUSPEND} == {S.SUSPENDING, S.SUSPENDED}
    assert {s for s, verb in nothing if verb is V.PARK} == {S.PARKING}
    resumed = {s for s, verb in nothing if verb is V.RESUME}
    assert resumed == {S.STARTING, S.RUNNING, S.SAVING, S.UNPARKING}


def test_a_second_save_and_a_second_resume_are_the_only_refusals_as_busy() -> None:
    assert pairs(A.BUSY) == {(S.SAVING, V.SAVE), (S.RESUMING, V.RESUME)}


def test_only_what_makes_no_sense_is_refused_for_good() -> None:
    absent_or_going = {S.STARTING, S.SUSPENDING, S.SUSPENDED, S.LOST}
    for verb in (V.SAVE, V.PARK):
        assert {state for state, one in pairs(A.CONFLICT) if one is verb} == absent_or_going
    unsuspendable = {state for state, verb in pairs(A.CONFLICT) if verb is V.SUSPEND}
    assert unsuspendable == {S.STARTING, S.LOST}
    assert not {verb for _, verb in pairs(A.CONFLICT)} & {V.RESUME, V.INTERRUPT, V.KILL}
