"""The ordered streams of the daemon: what a reader knows whatever happens between it and the daemon."""

import os
import signal
from contextlib import closing

import httpx
import pytest
from msgspec.structs import replace

from jupyter_gpuckpt.client import Client, starting, transport
from jupyter_gpuckpt.client.mirror import Mirror
from jupyter_gpuckpt.daemon.kernels.streams import MAX_WAITING_EVENTS
from jupyter_gpuckpt.errors import DaemonUnavailable
from jupyter_gpuckpt.wire import calls
from jupyter_gpuckpt.wire.protocol import (
    Event,
    Kernel,
    Operation,
    OperationKind,
    OperationState,
    Position,
    State,
)
from jupyter_gpuckpt.wire.states import KernelState


@pytest.fixture
def daemon_env(emptied_daemon_env):
    return emptied_daemon_env


def test_positions_only_grow_and_answers_have_theirs(client, owner, kernel, events, eventually):
    first = client.send(calls.kernel(kernel.kernel_id)).position
    client.wait(client.send(calls.save(kernel.kernel_id)).operation_id)
    eventually(lambda: any(e.operation and e.operation.is_over for e in list(events)))
    positions = [event.position for event in events]
    assert positions == sorted(positions)
    assert {position.incarnation for position in positions} == {first.incarnation}
    assert client.send(calls.kernel(kernel.kernel_id)).position > first


def test_what_an_operation_did_to_its_kernel_is_told_before_its_end(
    client, kernel, events, eventually
):
    def states_at_the_end(operation_id):
        states = []
        for event in list(events):
            if event.kernel is not None:
                states.append(event.kernel.state)
            shown = event.operation
            if shown is not None and shown.operation_id == operation_id and shown.is_over:
                return states
        return None

    for call, state in (
        (calls.suspend, KernelState.SUSPENDED),
        (calls.resume, KernelState.RUNNING),
        (calls.save, KernelState.RUNNING),
    ):
        operation = client.send(call(kernel.kernel_id))
        states = eventually(lambda: states_at_the_end(operation.operation_id))  # noqa: B023
        assert states[-1] is state


def test_the_end_of_an_operation_on_a_killed_kernel_is_told(client, kernel, events, eventually):
    operation = client.send(calls.save(kernel.kernel_id))
    followed = client.follow(operation.operation_id)
    next(followed)
    client.send(calls.kill(kernel.kernel_id))
    assert list(followed)[-1].is_over
    eventually(lambda: any(e.operation and e.operation.is_over for e in list(events)))


def test_a_client_that_connects_late_gets_the_end(client, kernel):
    operation = client.send(calls.save(kernel.kernel_id))
    ended = list(client.follow(operation.operation_id))[-1]
    (only,) = client.follow(operation.operation_id)
    assert (only.state, only.result) == (OperationState.SUCCEEDED, ended.result)


def test_an_owner_that_connects_late_gets_everything_in_one_event(client, settings, owner, kernel):
    operation = client.send(calls.save(kernel.kernel_id))
    client.wait(operation.operation_id)
    with (
        Client.connect(settings) as late,
        closing(late.stream(calls.owner_events(owner))) as events,
    ):
        first = next(events)
    assert [shown.kernel_id for shown in first.state.kernels] == [kernel.kernel_id]
    (shown,) = first.state.operations
    assert (shown.operation_id, shown.state) == (operation.operation_id, OperationState.SUCCEEDED)
    assert first.position >= shown.position


def test_a_slow_reader_gets_a_new_full_state(client, settings, kernel, owner, eventually):
    """It reads nothing for so long that its events do not fit the queue; then it knows what the daemon knows."""
    target = starting.target(settings, start=False)
    call = calls.owner_events(owner)
    with (
        httpx.Client(
            transport=transport.UnixTransport(target.socket), **transport.ANYWHERE
        ) as http,
        http.stream(**transport.arguments(call)) as response,
    ):
        lines = response.iter_lines()
        mirror = Mirror()
        mirror.apply(call.parse(200, next(lines).encode()))
        long = "n" * 20_000
        for number in range(2 * MAX_WAITING_EVENTS):
            client.send(calls.set_jupyter(kernel.kernel_id, f"{number} {long}", None))
        last = client.send(calls.kernel(kernel.kernel_id))
        states = read = 0
        while mirror.kernels[kernel.kernel_id].position < last.position:
            event = call.parse(200, next(lines).encode())
            states += event.state is not None
            read += 1
            assert event.position >= mirror.position
            mirror.apply(event)
    assert states >= 1
    assert read < 2 * MAX_WAITING_EVENTS
    assert mirror.kernels[kernel.kernel_id].name.startswith(str(2 * MAX_WAITING_EVENTS - 1))


def test_who_follows_an_operation_learns_that_the_daemon_was_killed(
    client, owner, kernel, settings
):
    for _ in range(20):
        pid = client.send(calls.handshake()).pid
        operation = client.send(calls.save(kernel.kernel_id))
        followed = client.follow(operation.operation_id)
        next(followed)
        os.kill(pid, signal.SIGKILL)
        try:
            end = list(followed)[-1]
        except DaemonUnavailable:
            return
        assert end.is_over  # it was quicker
    pytest.fail("every save was over before the daemon was dead")


def test_an_owner_learns_from_the_next_daemon_what_became_of_its_operations(
    client, owner, kernel, events, eventually
):
    operation = client.send(calls.save(kernel.kernel_id))
    before = client.send(calls.kernel(kernel.kernel_id)).position
    os.kill(client.send(calls.handshake()).pid, signal.SIGKILL)

    def ended():
        found = [e.operation for e in list(events) if e.operation and e.operation.is_over]
        return [one for one in found if one.operation_id == operation.operation_id]

    (told,) = eventually(ended)
    if told.position < before or told.state is OperationState.FAILED:
        assert told.error.code == "daemon_unavailable"
        assert "The kernel is" in told.error.hint
    # Everything that comes from the new daemon is newer than anything that the killed one has said.
    eventually(lambda: events[-1].position.incarnation > before.incarnation)
    positions = [event.position for event in list(events)]
    assert positions == sorted(positions)


def test_the_next_server_is_told_of_what_it_claims_and_of_the_end_of_its_operation(
    client, owner_of, owner, kernel, eventually
):
    """As at a restart of a server: the operation began under the former owner."""
    told_next = []
    operation = client.send(calls.save(kernel.kernel_id))
    with owner_of(client, on_event=told_next.append) as following:
        client.send(calls.leave(owner.owner_id))
        (claimed,) = client.send(calls.claim(following.owner_id))
        mirror = Mirror()

        def ended():
            # On a slow machine it may have ended before the claim, which then says so.
            told = [claimed.kernel.operation, *(event.operation for event in list(told_next))]
            return next((one for one in told if one and one.is_over), None)

        end = eventually(ended)
        assert end.operation_id == operation.operation_id
        assert end.state is OperationState.SUCCEEDED
        eventually(lambda: any(event.kernel for event in list(told_next)))
        shown = [event.kernel for event in list(told_next) if event.kernel]
        assert {one.owner_id for one in shown} == {following.owner_id}
        # What the claim answered is never newer than what follows on the stream.
        for event in told_next:
            mirror.apply(event)
        assert mirror.expect(claimed.kernel).position >= claimed.kernel.position
        assert mirror.kernels[kernel.kernel_id].state is KernelState.RUNNING


# ---- the mirror: no older record takes the place of a newer one ---------------------------------------------------------


def kernel_at(number, state=KernelState.RUNNING, incarnation=1):
    return Kernel("k", state, "o", position=Position(incarnation, number))


def operation_at(number, state=OperationState.RUNNING, incarnation=1):
    return Operation("op", OperationKind.SAVE, "k", state, position=Position(incarnation, number))


def told(number, incarnation=1, **what):
    return Event(Position(incarnation, number), **what)


def test_an_event_from_before_an_answer_changes_nothing():
    mirror = Mirror()
    mirror.apply(told(1, state=State()))
    assert mirror.expect(kernel_at(5)).position == Position(1, 5)
    for late in (told(3, kernel=kernel_at(3, KernelState.STARTING)), told(4, gone="k")):
        (change,) = mirror.apply(late)
        assert (change.kernel, change.gone) == (None, "")
    assert mirror.kernels["k"].state is KernelState.RUNNING
    mirror.apply(told(6, gone="k"))
    assert mirror.kernels == {}


def test_an_event_from_before_the_answer_that_an_operation_is_over_changes_nothing():
    mirror = Mirror()
    mirror.operations["op"] = operation_at(5, OperationState.SUCCEEDED)
    (change,) = mirror.apply(told(4, operation=operation_at(4)))
    assert change.operation is None
    assert mirror.operations["op"].is_over


def test_an_answer_from_before_an_event_changes_nothing():
    mirror = Mirror()
    mirror.apply(told(7, state=State([kernel_at(7)])))
    assert mirror.expect(kernel_at(5, KernelState.STARTING)).state is KernelState.RUNNING
    mirror.apply(told(8, gone="k"))
    assert mirror.expect(kernel_at(5)) is None
    assert mirror.kernels == {}


def test_an_answer_of_a_killed_daemon_changes_nothing():
    mirror = Mirror()
    mirror.apply(told(0, incarnation=2, state=State([kernel_at(0, KernelState.SUSPENDED, 2)])))
    assert mirror.expect(kernel_at(99)).state is KernelState.SUSPENDED


def test_a_full_state_is_told_as_what_it_changes():
    mirror = Mirror()
    mirror.apply(told(1, state=State([kernel_at(1)], [operation_at(1)])))
    kernel, operation = mirror.apply(told(2, state=State([kernel_at(2)])))
    assert kernel.kernel.position == Position(1, 2)
    assert operation.operation.state is OperationState.FAILED
    (gone,) = mirror.apply(told(3, state=State()))
    assert gone.gone == "k"


def test_the_end_of_an_operation_is_known_though_many_that_began_later_have_ended():
    mirror = Mirror()
    mirror.apply(told(1, operation=operation_at(1)))
    for number in range(2, 302):
        other = replace(operation_at(number, OperationState.SUCCEEDED), operation_id=str(number))
        mirror.apply(told(number, operation=other))
    mirror.apply(told(302, operation=operation_at(302, OperationState.SUCCEEDED)))
    assert mirror.operations["op"].is_over
    assert len(mirror.operations) < 302


def test_an_operation_that_began_after_a_state_is_not_lost_by_it():
    mirror = Mirror()
    mirror.operations["op"] = operation_at(5)
    mirror.apply(told(4, state=State([kernel_at(4)])))
    assert not mirror.operations["op"].is_over
    mirror.apply(told(6, state=State([kernel_at(6)])))
    assert mirror.operations["op"].state is OperationState.FAILED
