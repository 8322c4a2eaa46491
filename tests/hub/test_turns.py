"""Servers of one machine suspend their kernels a few at a time: the first ones are done before a deadline that all together would miss."""

import asyncio
from types import SimpleNamespace

import pytest
from jupyterhub.spawner import SimpleLocalProcessSpawner
from traitlets.config import Config

import jupyter_gpuckpt.hub as hub_package
from jupyter_gpuckpt.hub import spawner as spawner_module
from jupyter_gpuckpt.hub import with_suspend
from jupyter_gpuckpt.hub.turns import Turns

#: Never reached.
LONG = 60.0
#: The time of a suspend.
SECONDS = 1.0


class Visits:
    """Tasks that hold a turn until they are told to end."""

    def __init__(self, turns, wait=LONG, at_once=2):
        self._turns, self._given = turns, (at_once, wait)
        self.begun, self._ends, self._tasks = [], {}, {}
        self.c_begins, self.f_begins = asyncio.Event(), asyncio.Event()

    async def begin(self, *names):
        for name in names:
            self._ends[name] = asyncio.Event()
            self._tasks[name] = asyncio.create_task(self._visit(name))
        await settled()

    async def end(self, *names):
        for name in names:
            self._ends[name].set()
        await asyncio.gather(*(self._tasks.pop(name) for name in names))
        await settled()

    async def cancel(self, name):
        task = self._tasks.pop(name)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    async def _visit(self, name):
        async with self._turns.turn(*self._given):
            self.begun.append(name)
            if event := {"c": self.c_begins, "f": self.f_begins}.get(name):
                event.set()
            await self._ends[name].wait()


async def settled():
    """Let all tasks do what they can do now."""
    for _ in range(10):
        await asyncio.sleep(0)


def test_two_begin_and_the_others_follow_in_their_order():
    async def run():
        visits = Visits(Turns())
        await visits.begin(*"abcde")
        assert visits.begun == ["a", "b"]
        await visits.end("b")
        assert visits.begun == ["a", "b", "c"]
        await visits.end("a", "c")
        assert visits.begun == ["a", "b", "c", "d", "e"]
        await visits.end("d", "e")

    asyncio.run(run())


def test_without_a_limit_nobody_waits():
    async def run():
        visits = Visits(Turns(), at_once=0)
        await visits.begin(*"abc")
        assert visits.begun == ["a", "b", "c"]
        await visits.end(*"abc")

    asyncio.run(run())


def test_a_canceled_wait_and_a_canceled_turn_leave_the_turn_to_others():
    async def run():
        turns = Turns()
        visits = Visits(turns)
        await visits.begin(*"abcd")
        await visits.cancel("c")
        await visits.cancel("a")
        await settled()
        assert visits.begun == ["a", "b", "d"]
        await visits.end("b", "d")
        await visits.begin("e", "f")
        assert visits.begun[-2:] == ["e", "f"]
        await visits.end("e", "f")

    asyncio.run(run())


def test_those_who_wait_begin_one_by_one_if_others_hang():
    async def run():
        clock = asyncio.get_running_loop().time
        visits = Visits(Turns(), wait=0.8)
        began = clock()
        await visits.begin(*"abcdef")
        assert visits.begun == ["a", "b"]
        async with asyncio.timeout(LONG):
            await visits.c_begins.wait()
            # Four wait for 0.8 s at most.
            assert clock() - began >= 0.2
            await visits.f_begins.wait()
        assert clock() - began >= 0.8
        assert visits.begun == ["a", "b", "c", "d", "e", "f"]
        # Six hold two turns, so the next one begins when the last of them has ended but one.
        later = Visits(visits._turns)
        await later.begin("x")
        await visits.end(*"abcd")
        assert later.begun == []
        await visits.end("e")
        assert later.begun == ["x"]
        await visits.end("f")
        await later.end("x")

    asyncio.run(run())


@pytest.mark.parametrize(
    "waits", [[5.0, LONG], [LONG, 5.0], [5.0, 5.0, 5.0], [LONG, LONG, 5.0, 5.0]]
)
def test_each_one_begins_in_time_whoever_comes_later(waits):
    async def run():
        turns = Turns()
        visits = [Visits(turns, wait, at_once=1) for wait in [LONG, *waits]]
        for visit in visits:
            await visit.begin("x")
        now = asyncio.get_running_loop().time()
        places = enumerate(turns._waiting, start=1)
        assert turns._timer.when() <= 1 + min(now + (one.latest - now) / at for at, one in places)
        for visit in visits:
            await visit.end("x")

    asyncio.run(run())


def limit_of(spawner_class, section="GpuCkptSpawnerMixin", **settings):
    """Return the number of servers at once with these settings."""
    user = SimpleNamespace(name="", id=0)
    return spawner_class(config=Config({section: settings}), user=user).suspends_at_once


def test_servers_on_the_machine_of_the_hub_have_as_many_turns_as_it_has_processors(monkeypatch):
    monkeypatch.setattr(spawner_module, "processors", lambda: 3)
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    docker = hub_package.GpuCkptDockerSpawner
    for here in (
        hub_package.GpuCkptLocalProcessSpawner,
        hub_package.GpuCkptSystemdSpawner,
        docker,
        with_suspend("simple"),
    ):
        assert limit_of(here) == 3
        assert limit_of(here, suspends_at_once=7) == 7
    elsewhere = {"base_url": "tcp://10.0.0.1:2376"}
    assert limit_of(docker, "DockerSpawner", client_kwargs=elsewhere) == 0
    assert limit_of(docker, "DockerSpawner", client_kwargs={"base_url": "unix:///run/d"}) == 3
    monkeypatch.setenv("DOCKER_HOST", "ssh://elsewhere")
    assert limit_of(docker) == 0
    assert limit_of(hub_package.GpuCkptSlurmSpawner) == 0


def test_the_wait_for_a_turn_is_part_of_the_time(monkeypatch):
    asked = []

    async def suspend_all(within, *given):
        asked.append(within)
        return spawner_module.Report()

    async def usage(*given):
        return spawner_module.Usage()

    monkeypatch.setattr(spawner_module.server_request, "suspend_all", suspend_all)
    monkeypatch.setattr(spawner_module.server_request, "usage", usage)

    class Stopped(SimpleLocalProcessSpawner):
        async def stop(self, now=False):
            pass

    def made():
        spawner = with_suspend(Stopped)(api_token="t", suspends_at_once=1, suspend_timeout=SECONDS)
        spawner.user = SimpleNamespace(name="eve", settings={})
        spawner.server = SimpleNamespace(url="http://127.0.0.1:1")
        return spawner

    async def run():
        # Somebody hangs.
        async with spawner_module._turns.turn(1, LONG):
            await made().stop()
        await made().stop()

    asyncio.run(run())
    assert asked[0] <= SECONDS / 2
    assert asked[0] < asked[1] <= SECONDS
