"""A kernel that came from a machine whose clock is ahead, and goes on here until the daemon is killed in its next suspend."""

import uuid
from contextlib import suppress

import pytest

from jupyter_gpuckpt.client import Client
from jupyter_gpuckpt.client.reviving import revive
from jupyter_gpuckpt.errors import DaemonUnavailable
from jupyter_gpuckpt.wire import calls
from jupyter_gpuckpt.wire.progress import Stage
from jupyter_gpuckpt.wire.states import KernelState
from tests.conftest import environment, folder_of_a_daemon
from tests.daemon import jumping_clock
from tests.daemon.conftest import settings_in
from tests.daemon.jumping_clock import Clock
from tests.daemon.test_crashes_at_every_step import Dying

pytestmark = pytest.mark.slow


@pytest.fixture
def machine(short_dir, eventually):
    """Return a function that starts a daemon; those that are left are ended."""
    started = []

    def start(settings, env):
        started.append(Dying(settings, short_dir / "die-at", eventually, env=env))
        return started[-1]

    yield start
    for one in started:
        one.end()


@pytest.fixture
def archive(criu, machine, owner_of, spec, counts, eventually):
    """Return the kernel's id, the last snapshot's, and its archive, from a machine whose clock is ten minutes ahead."""
    made = spec(kernel_id=str(uuid.uuid4()))
    with folder_of_a_daemon() as folder, pytest.MonkeyPatch.context() as patched:
        ahead = Clock(folder / "clock", jumping_clock.build(folder))
        ahead.step(600.0)
        there = settings_in(environment(criu, folder), patched)
        machine(there, ahead.env)
        with Client.connect(there) as client, owner_of(client) as owner:
            client.send(calls.launch(owner.owner_id, made))
            eventually(lambda: counts(made.kernel_id))
            for verb in (calls.suspend, calls.resume, calls.suspend):
                last = client.wait(client.send(verb(made.kernel_id)).operation_id)
            with client.export(last.snapshot_id) as (_, pieces):
                return made.kernel_id, last.snapshot_id, b"".join(pieces)


def test_a_living_kernel_is_not_taken_for_what_came_from_a_machine_that_is_ahead(
    archive, settings, machine, owner_of, counts, eventually
):
    kernel_id, old, content = archive
    dying = machine(settings, {})
    with Client.connect(settings) as client, owner_of(client) as owner:
        [brought] = client.send(calls.import_archive([content]))
        revive(client, owner.owner_id, old, "", client.send(calls.launch_spec(old)))
        client.wait(client.send(calls.resume(kernel_id)).operation_id)
        living = client.send(calls.kernel(kernel_id))
        dying.at(str(Stage.STORE))
        with suppress(DaemonUnavailable):
            client.send(calls.suspend(kernel_id))
        dying.wait()
    machine(settings, {})
    with Client.connect(settings) as client:
        found = client.send(calls.kernel(kernel_id))
        assert (found.state, found.pid) == (KernelState.RUNNING, living.pid)
        before = counts(kernel_id)
        eventually(lambda: counts(kernel_id) > before)
        new = client.wait(client.send(calls.suspend(kernel_id)).operation_id).snapshot_id
        listed = client.send(calls.snapshots(kernel_id))
        assert [one.snapshot_id for one in listed] == [new, old]
        assert [one.number for one in listed] == [brought.number + 1, brought.number]
        assert brought.created > listed[0].created
