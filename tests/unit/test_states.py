"""Both tables of `states.py`, cell by cell."""

from __future__ import annotations

import pytest

from jupyter_gpuckpt.wire.states import (
    ALIVE,
    TRANSITIONS,
    Answer,
    KernelState,
    Verb,
    answer,
    may_follow,
)

ALLOWED = {
    "starting": "running lost",
    "running": "saving parking suspending lost",
    "saving": "running parked suspending lost",
    "parking": "parked running lost",
    "parked": "unparking saving suspending lost",
    "unparking": "running parked lost",
    "suspending": "suspended running parked lost",
    "suspended": "resuming",
    "resuming": "running suspended lost",
    "lost": "resuming",
}

ANSWERS = {
    #            save     suspend  resume   interrupt kill    end  park
    "starting": "conflict conflict nothing do do conflict conflict",
    "running": "do do nothing do do do do",
    "saving": "busy preempt nothing wait preempt preempt wait",
    "parking": "wait wait wait wait preempt wait nothing",
    "parked": "do do do wait do do nothing",
    "unparking": "wait wait nothing wait preempt wait wait",
    "suspending": "conflict nothing wait wait preempt wait conflict",
    "suspended": "conflict nothing do nothing do do conflict",
    "resuming": "wait wait busy wait preempt wait wait",
    "lost": "conflict conflict do nothing do do conflict",
}


@pytest.mark.parametrize("then", KernelState)
@pytest.mark.parametrize("now", KernelState)
def test_every_transition(now: KernelState, then: KernelState) -> None:
    assert may_follow(now, then) == (then in ALLOWED[now].split())


@pytest.mark.parametrize("verb", Verb)
@pytest.mark.parametrize("state", KernelState)
def test_every_answer(state: KernelState, verb: Verb) -> None:
    expected = ANSWERS[state].split()[list(Verb).index(verb)]
    assert answer(state, verb) is Answer(expected)


def test_a_second_save_and_a_second_resume_are_the_only_refusals_as_busy() -> None:
    busy = {(s, v) for s in KernelState for v in Verb if answer(s, v) is Answer.BUSY}
    assert busy == {(KernelState.SAVING, Verb.SAVE), (KernelState.RESUMING, Verb.RESUME)}


def test_every_state_that_is_left_alive_may_be_lost() -> None:
    assert all(KernelState.LOST in TRANSITIONS[state] for state in ALIVE)
