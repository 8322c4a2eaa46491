"""`make soak`: ten kernels, random operations and random kills, for as long as is asked; the report is docs/reliability.md.

Settings are environment variables: SOAK_SECONDS (7200) and SOAK_KILLS (500) end the two halves, SOAK_SEED repeats a run's choices.
"""

from __future__ import annotations

import functools
import os
import platform
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from tests.soak.world import KERNELS, STUCK_SECONDS, World

WHOM = ("daemon", "server", "criu", "worker", "everything")
VERBS = ("save", "suspend", "resume")


class Limits:
    """When a half of the run is over."""

    def __init__(self, world: World, seconds: float, kills: int) -> None:
        self._world, self._kills = world, kills
        self._end = time.monotonic() + seconds

    def reached(self) -> bool:
        """Return whether there is nothing left to do."""
        if self._kills and sum(self._world.kills.values()) >= self._kills:
            return True
        return time.monotonic() > self._end


def machine(world: World, limits: Limits, *, with_kills: bool) -> type[RuleBasedStateMachine]:
    """Return the rules as hypothesis calls them; once a limit is reached they do nothing any more."""
    kernels = st.integers(0, KERNELS - 1).map(lambda number: world.models[number])

    def limited(step: Callable[..., None]) -> Callable[..., None]:
        """Do nothing once a limit is reached, and keep the first failure: hypothesis repeats a failing run, which differs here."""

        @functools.wraps(step)
        def done(self: RuleBasedStateMachine, **arguments: object) -> None:
            if limits.reached() or world.failure:
                return
            try:
                step(self, **arguments)
            except BaseException:
                world.failure = traceback.format_exc()

        return done

    class Rules(RuleBasedStateMachine):
        @rule(model=kernels)
        @limited
        def use(self, model):
            world.use(model)

        @rule(model=kernels, verb=st.sampled_from(VERBS))
        @limited
        def operate(self, model, verb):
            state = world.states()[model.name]
            if verb != "resume" or state == "suspended":
                if verb == "save" and state == "suspended":
                    return
                getattr(world, verb)(model)

        @rule(model=kernels)
        @limited
        def interrupt(self, model):
            world.interrupt(model)

        @rule(model=kernels)
        @limited
        def roll_back(self, model):
            world.roll_back(model)

        @rule(model=kernels)
        @limited
        def delete(self, model):
            world.delete(model)

        @rule(chance=st.integers(0, 9))
        @limited
        def restart_server(self, chance):
            if with_kills and chance == 0:
                world.restart_server()

        @rule(
            kills=st.lists(
                st.tuples(kernels, st.sampled_from(WHOM), st.sampled_from(VERBS), st.floats(0, 1)),
                max_size=8,
            )
        )
        @limited
        def kill(self, kills):
            for model, whom, verb, moment in kills if with_kills else ():
                suspended = world.states()[model.name] == "suspended"
                if verb == "resume" and not suspended:
                    world.suspend(model)
                elif verb != "resume":
                    world.use(model)
                world.kill(whom, verb, model, moment)
                print(f"{sum(world.kills.values())} kills", file=sys.stderr, flush=True)

        def teardown(self):
            if not world.failure:
                world.wait_for_steady_states()
                world.sample()

    return Rules


def run(world: World, seconds: float, kills: int, number: int) -> None:
    """Let hypothesis choose until a limit is reached. Raises what a rule raised."""
    limits = Limits(world, seconds, kills)
    soak_settings = settings(
        max_examples=6,  # the first of them is the simplest that there is
        stateful_step_count=40,
        deadline=None,
        phases=[Phase.generate],
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    while not limits.reached():
        rules = seed(number)(machine(world, limits, with_kills=bool(kills)))
        run_state_machine_as_test(rules, settings=soak_settings)
        if world.failure:
            raise AssertionError(world.failure)
        number += 1


def report(calm: World, killed: World, took: tuple[float, float]) -> str:
    """Return the page as Markdown."""
    steps = calm.steps + killed.steps
    lines = [
        "# Reliability",
        "",
        f"`make soak` ran on {time.strftime('%Y-%m-%d')} on {os.cpu_count()} cores, Linux {platform.release()}: "
        f"{KERNELS} kernels of one Jupyter server, operations and moments chosen at random. Each kernel has memory with a "
        "digest, an open file, a thread and a child that answers; after every kill two kernels are used and compared with what "
        "they must be.",
        "",
        f"**{sum(killed.kills.values())} processes were killed (SIGKILL) in {took[1] / 60:.0f} minutes. No kernel was lost, none came "
        f"back with a wrong state, and none was in a transient state for more than {killed.longest_transient:.1f} s "
        f"(limit {STUCK_SECONDS:.0f} s).** Left over at the end: {', '.join(killed.leftovers()) or 'nothing'}.",
        "",
        "| Killed | During | Times |",
        "| --- | --- | ---: |",
        *(
            f"| {' | '.join(name.split(' during '))} | {count} |"
            for name, count in sorted(killed.kills.items())
        ),
        "",
        "| Operation | Times |",
        "| --- | ---: |",
        *(f"| {name} | {count} |" for name, count in sorted(steps.items())),
        "",
        f"## Memory and descriptors, without kills, over {took[0] / 60:.0f} minutes",
        "",
        "| Minute | Daemon | Descriptors | Server | Descriptors |",
        "| ---: | ---: | ---: | ---: | ---: |",
    ]
    every = max(1, len(calm.samples) // 12)
    lines += [
        f"| {sample.seconds / 60:.1f} | {sample.daemon_bytes / 1e6:.0f} MB | {sample.daemon_descriptors} "
        f"| {sample.server_bytes / 1e6:.0f} MB | {sample.server_descriptors} |"
        for sample in [*calm.samples[:-1:every], *calm.samples[-1:]]
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run both halves and print the report."""
    seconds = float(os.environ.get("SOAK_SECONDS", "7200"))
    kills = int(os.environ.get("SOAK_KILLS", "500"))
    number = int(os.environ.get("SOAK_SEED", str(time.time_ns() % 1_000_000)))
    print(f"seed {number}", file=sys.stderr)
    took = []
    worlds = []
    for amount, limit in ((0, seconds / 4), (kills, seconds * 3 / 4)):
        with World(number) as world:
            began = time.monotonic()
            try:
                run(world, limit, amount, number)
                world.wait_for_steady_states()
            except BaseException:
                print(world.server.log(), file=sys.stderr)
                kept = Path("/tmp/soak-failed.log")
                kept.write_bytes((world.folder / "data/log/gpuckptd.log").read_bytes())
                print(f"The daemon's log is kept in {kept}. {dict(world.kills)}", file=sys.stderr)
                raise
            for model in world.models:
                world.use(model)
            took.append(time.monotonic() - began)
            worlds.append(world)
            text = report(worlds[0], worlds[-1], (took[0], took[-1]))
    sys.stdout.write(text)


if __name__ == "__main__":
    main()
