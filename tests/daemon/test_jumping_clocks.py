"""A daemon that is killed with -9 at every step, while its time of day jumps in both directions between all steps."""

import pytest

from jupyter_gpuckpt.wire.progress import Stage
from tests.daemon import jumping_clock
from tests.daemon.jumping_clock import Clock
from tests.daemon.test_crashes_at_every_step import (  # noqa: F401 - fixtures
    MOMENTS,
    STEPS,
    World,
    daemon_env,
    holder,
    short_dir,
    survives,
)

#: What a quick run kills the daemon at: before and after the step that its successor cannot undo.
QUICK = [("suspend", Stage.STORE), ("suspend", Stage.COMMIT)]


@pytest.fixture(scope="module")
def world(criu, tmp_path_factory):
    folder = tmp_path_factory.mktemp("clock")
    clock = Clock(folder / "clock", jumping_clock.build(folder))
    made = World(criu, {**clock.env, "JUMPS": "1"})
    yield made
    made.end()


@pytest.mark.parametrize(("verb", "at"), QUICK)
def test_a_daemon_whose_clock_jumps_costs_nothing(survives, verb, at):  # noqa: F811
    survives(verb, at)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("verb", "at"), [*STEPS, *MOMENTS], ids=lambda word: word.rpartition(".")[2]
)
def test_a_daemon_whose_clock_jumps_costs_nothing_at_any_step(survives, verb, at):  # noqa: F811
    survives(verb, at)
