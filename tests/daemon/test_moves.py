"""Moves: a suspended kernel's snapshot is uploaded, and its session is released, for another machine to offer it first."""

from __future__ import annotations

import sys
import uuid

import pytest

from jupyter_gpuckpt.daemon.remotes import remote_keys, session_requests
from jupyter_gpuckpt.errors import ConfigurationError, KernelStateConflict, RemoteNotFound
from jupyter_gpuckpt.remote.lease_objects import Leases
from jupyter_gpuckpt.remote.pack_refs import PACK_BYTES
from jupyter_gpuckpt.remote.remote_list import Remotes
from jupyter_gpuckpt.remote.remote_sessions import Sessions
from jupyter_gpuckpt.wire import calls
from jupyter_gpuckpt.wire.protocol import OperationKind, OperationState
from jupyter_gpuckpt.wire.remote_listings import ListedSession, ListedSnapshot
from jupyter_gpuckpt.wire.states import KernelState
from tests.daemon.conftest import LARGE

pytestmark = pytest.mark.usefixtures("credentials")

#: Bytes per second, too few for two packs to be uploaded within a test; the first one has to wait for none.
NEVER = 1000


@pytest.fixture
def sessions(settings):
    """Return a function that opens the remote sessions of the remote, and the leases of another daemon there."""

    def opened():
        there = remote_keys.opened(settings.data, Remotes(settings.data).get("offsite"))
        found = Sessions(there.bucket, there.key.seal, there.seen)
        return found, Leases(there.bucket, there.key.seal, found, "b", host_name="other")

    return opened


@pytest.fixture
def suspended(client, kernel):
    """Return the record of a kernel after its suspend."""
    client.wait(client.send(calls.suspend(kernel.kernel_id)).operation_id)
    return client.send(calls.kernel(kernel.kernel_id))


@pytest.fixture
def large(client, owner, spec, short_dir, counts, eventually):
    """Return the record of a suspended kernel whose snapshot is uploaded in two packs."""
    kernel_id = str(uuid.uuid4())
    argv = [sys.executable, "-c", LARGE, str(short_dir / kernel_id), str(2 * PACK_BYTES)]
    client.send(calls.launch(owner.owner_id, spec(argv, kernel_id=kernel_id)))
    eventually(lambda: counts(kernel_id))
    client.wait(client.send(calls.suspend(kernel_id)).operation_id)
    return client.send(calls.kernel(kernel_id))


def ended(client, started):
    *_, last = client.follow(started.operation_id)
    return last


@pytest.mark.slow
def test_a_suspended_kernel_is_moved_and_offered_first(client, suspended, add, sessions):
    add()
    began = client.send(calls.move(suspended.kernel_id))
    assert (began.kind, began.kernel_id) == (OperationKind.MOVE, suspended.kernel_id)
    done = ended(client, began)
    assert done.state is OperationState.SUCCEEDED, done
    assert (done.outcome().snapshot_id, done.outcome().warnings) == (suspended.snapshot_id, [])
    assert client.send(calls.kernel(suspended.kernel_id)).state is KernelState.SUSPENDED
    found, other = sessions()
    session = found.get(suspended.kernel_id)
    assert [one.snapshot_id for one in session.listed] == [suspended.snapshot_id]
    assert session.lease is None
    assert session.moved_at > 0
    again = ended(client, client.send(calls.move(suspended.kernel_id, "offsite")))
    assert again.state is OperationState.SUCCEEDED
    [listed] = client.send(calls.remote_sessions("offsite")).sessions
    assert listed.moved_at >= session.moved_at
    # Whoever gets the session has taken it.
    other.claim(suspended.kernel_id)
    assert found.get(suspended.kernel_id).moved_at == 0


def test_a_kernel_that_was_just_resumed_is_released_at_once(client, suspended, add, sessions):
    add()
    assert ended(client, client.send(calls.move(suspended.kernel_id))).outcome().warnings == []
    client.wait(client.send(calls.resume(suspended.kernel_id)).operation_id)
    client.wait(client.send(calls.suspend(suspended.kernel_id)).operation_id)
    moved = ended(client, client.send(calls.move(suspended.kernel_id))).outcome()
    assert moved.warnings == []
    found, _ = sessions()
    assert found.get(suspended.kernel_id).lease is None


def test_what_cannot_be_moved_is_refused_by_name(client, kernel, add):
    with pytest.raises(KernelStateConflict, match="is running, so it cannot be moved"):
        client.send(calls.move(kernel.kernel_id))
    client.wait(client.send(calls.suspend(kernel.kernel_id)).operation_id)
    with pytest.raises(ConfigurationError, match="no remote to which") as caught:
        client.send(calls.move(kernel.kernel_id))
    assert "remote add" in caught.value.command
    add(automatic=False)
    add("other", automatic=False)
    with pytest.raises(ConfigurationError, match="2 remotes") as caught:
        client.send(calls.move(kernel.kernel_id))
    assert "offsite, other" in caught.value.hint
    with pytest.raises(RemoteNotFound, match="'third'"):
        client.send(calls.move(kernel.kernel_id, "third"))


def test_a_move_is_canceled_and_one_of_a_kernel_that_runs_again_fails(
    client, large, add, counts, eventually
):
    add(upload_rate=NEVER, automatic=False)
    began = client.send(calls.move(large.kernel_id))
    # The same question again gets the same operation.
    assert client.send(calls.move(large.kernel_id)).operation_id == began.operation_id
    eventually(lambda: client.send(calls.operation(began.operation_id)).progress.total_bytes)
    client.send(calls.cancel(began.operation_id))
    assert ended(client, began).state is OperationState.CANCELLED
    assert client.send(calls.kernel(large.kernel_id)).state is KernelState.SUSPENDED

    began = client.send(calls.move(large.kernel_id))
    client.wait(client.send(calls.resume(large.kernel_id)).operation_id)
    failed = ended(client, began)
    assert failed.state is OperationState.FAILED
    assert failed.error.code == "kernel_state_conflict", failed.error
    assert client.send(calls.kernel(large.kernel_id)).state is KernelState.RUNNING
    before = counts(large.kernel_id)
    eventually(lambda: counts(large.kernel_id) > before)


def test_what_was_moved_is_offered_before_what_is_newer():
    def session(name, created, *, here=False, **changes):
        snapshot = ListedSnapshot(f"s-{name}", name, created, here=here)
        return ListedSession(name, snapshots=[snapshot], **changes)

    found = [
        session("runs", 9.0, leased_to="far away"),
        session("newer", 8.0),
        session("moved", 7.0, moved_at=20.0),
        session("moved before", 8.5, moved_at=10.0),
        session("is here", 9.5, here=True, moved_at=30.0),
    ]
    order = [one.session_id for one in sorted(found, key=session_requests.rank)]
    assert order == ["moved", "moved before", "newer", "is here", "runs"]
