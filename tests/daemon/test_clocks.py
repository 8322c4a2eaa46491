"""Clocks that are set, and machines whose clocks differ: no time of day decides what a kernel's newest state is.

The daemon has a shifted clock (`clock.c`), which a test sets. In test_jumping_clocks.py it jumps at every step of every operation.
"""

from contextlib import suppress

import pytest

from jupyter_gpuckpt.client import Client
from jupyter_gpuckpt.errors import DaemonUnavailable
from jupyter_gpuckpt.wire import calls
from jupyter_gpuckpt.wire.progress import Stage
from jupyter_gpuckpt.wire.states import KernelState
from tests.daemon import jumping_clock
from tests.daemon.jumping_clock import Clock
from tests.daemon.test_crashes_at_every_step import (  # noqa: F401 - fixtures
    World,
    daemon_env,
    forget_snapshots,
    holder,
    short_dir,
)

HOUR = 3600.0


@pytest.fixture(scope="module")
def clock(tmp_path_factory):
    folder = tmp_path_factory.mktemp("clock")
    return Clock(folder / "clock", jumping_clock.build(folder))


@pytest.fixture(scope="module")
def world(criu, clock):
    """Return a world whose clock only the test sets."""
    made = World(criu, clock.env)
    yield made
    made.end()


def work(client, kernel_id, counts, eventually):
    before = counts(kernel_id)
    eventually(lambda: counts(kernel_id) > before + 2)


def in_lists(client, kernel_id):
    return [one.snapshot_id for one in client.send(calls.snapshots(kernel_id))]


def done(client, verb, kernel_id):
    return client.wait(client.send(verb(kernel_id)).operation_id).snapshot_id


@pytest.mark.parametrize(
    "steps",
    [
        pytest.param((0.0, -HOUR), id="back"),
        pytest.param((10 * 60.0, -10 * 60.0), id="ahead", marks=pytest.mark.slow),
    ],
)
def test_a_living_kernel_is_not_taken_for_an_older_snapshot(
    world,
    holder,  # noqa: F811
    settings,
    clock,
    counts,
    eventually,
    steps,
):
    """The clock is set back between two suspends, or the first was made by a machine whose clock is ahead."""
    kernel_id = holder.kernel_id
    with Client.connect(settings) as client:
        clock.step(steps[0])
        old = done(client, calls.suspend, kernel_id)
        done(client, calls.resume, kernel_id)
        clock.step(steps[1])
        work(client, kernel_id, counts, eventually)
        living = client.send(calls.kernel(kernel_id))
        world.dying.at(str(Stage.STORE))
        with suppress(DaemonUnavailable):
            client.send(calls.suspend(kernel_id))
        world.dying.wait()
    world.start(settings, eventually)
    with Client.connect(settings) as client:
        found = client.send(calls.kernel(kernel_id))
        assert (found.state, found.pid) == (KernelState.RUNNING, living.pid)
        work(client, kernel_id, counts, eventually)
        # The newest is what was made last, although its time is the earliest.
        new = done(client, calls.suspend, kernel_id)
        assert in_lists(client, kernel_id) == [new, old]
        assert done(client, calls.resume, kernel_id) == new
        forget_snapshots(client)
    world.is_unharmed = True


def test_a_shutdown_can_be_undone_although_the_clock_was_set_forward(
    world,
    holder,  # noqa: F811
    settings,
    clock,
    counts,
    eventually,
):
    """The next daemon, too, kills the processes only when the time that was said is over."""
    kernel_id = holder.kernel_id
    with Client.connect(settings) as client:
        client.send(calls.end(kernel_id, 600.0))
    world.dying.end()
    clock.step(2 * HOUR)
    world.start(settings, eventually)
    with Client.connect(settings) as client:
        ended = client.send(calls.kernel(kernel_id))
        assert (ended.pid, ended.ends_at > 0) == (holder.pid, True)
        client.send(calls.undo_end(kernel_id))
        work(client, kernel_id, counts, eventually)
    clock.step(-2 * HOUR)
    world.is_unharmed = True
