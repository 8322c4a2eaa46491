"""Which kernels are suspended for memory, and which are not: against a memory of numbers. tests/server has the real one."""

import asyncio
import logging
import time
from types import SimpleNamespace

import pytest

from jupyter_gpuckpt.errors import OperationCancelled
from jupyter_gpuckpt.server.policies import memory_room
from jupyter_gpuckpt.wire.manifest_records import Sizes
from jupyter_gpuckpt.wire.protocol import Kernel, MemoryUse
from jupyter_gpuckpt.wire.states import KernelState

GB = 10**9
#: More than any test here takes.
PATIENCE = 10.0


class Memory:
    """A memory of 10 GB. `held`: by idle kernel, the least recently used first; `used`: by everything else."""

    def __init__(self, held=None, used=0):
        self.held, self.used = held or {}, used
        #: The age of each kernel's last cell and of its resume, in seconds, where that is not long ago.
        self.cells, self.resumes = {}, {}
        self.suspended, self.said = [], []
        #: The part of a suspended kernel's memory that is free afterwards.
        self.freed = 1
        self.snapshots_found = []
        self.stopping = False

    async def send(self, call):
        assert call.path == "/memory"
        await asyncio.sleep(0)
        return [MemoryUse("It", 10 * GB, 10 * GB - self.used - sum(self.held.values()))]

    async def measured(self):
        now = time.time()
        return [
            Kernel(
                one,
                KernelState.RUNNING,
                "",
                memory_bytes=size,
                since=now - self.resumes.get(one, 99),
            )
            for one, size in self.held.items()
        ]

    async def snapshots(self):
        return self.snapshots_found

    async def suspend(self, kernel_id, cause):
        await asyncio.sleep(0)
        self.suspended.append(kernel_id)
        size = self.held.pop(kernel_id)
        self.used += size * (1 - self.freed)
        return ""

    def wanted(self, size):
        kernel = Kernel("wanted", KernelState.SUSPENDED, "", snapshot_id="s1", suspended_bytes=size)
        return SimpleNamespace(kernel=kernel, wait_for=self.said.append)


@pytest.fixture
def maker(monkeypatch):
    """Make a MemoryRoom for a Memory."""
    monkeypatch.setattr(memory_room, "_IDLE_SECONDS", 0.4)
    monkeypatch.setattr(memory_room, "_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(memory_room, "_JITTER_SECONDS", 0.0)

    def make(memory):
        def idle(*_, after_seconds, parked_too):
            return [one for one in memory.held if memory.cells.get(one, 99) >= after_seconds]

        monkeypatch.setattr(memory_room, "idle_kernels", idle)
        link, log = SimpleNamespace(daemon=memory), logging.getLogger("test")
        return memory_room.MemoryRoom(link, None, memory, memory, high=0.9, log=log)

    return make


async def resume(room, memory, size, check=lambda: None, snapshot_id=""):
    """Begin a resume, with room if there can be; return its claim."""
    served = memory.wanted(size)
    claim = await room.claim(served, snapshot_id)
    if not claim.has_room:
        await room.make(served, claim, check)
    return claim


def test_no_more_kernels_than_necessary_are_suspended_for_a_resume(maker):
    memory = Memory({"older": 4 * GB, "old": 3 * GB, "new": 2 * GB})
    asyncio.run(resume(maker(memory), memory, 6 * GB))
    assert memory.suspended == ["older", "old"]
    assert memory.said == ["It waits for memory: other kernels are suspended first."] * 2 + [""]


@pytest.mark.parametrize(
    ("used", "size"),
    # More than there is, and more than all idle kernels can give.
    [(0, 11 * GB), (6 * GB, 5 * GB)],
)
def test_none_is_suspended_for_a_resume_that_cannot_fit(maker, used, size):
    memory = Memory({"older": 2 * GB, "old": 1 * GB}, used)
    claim = asyncio.run(resume(maker(memory), memory, size))
    assert memory.suspended == []
    assert memory.said == [""]
    assert claim.has_room  # the resume is tried


def test_a_suspend_that_frees_nothing_is_the_last(maker):
    memory = Memory({"older": 4 * GB, "old": 4 * GB}, 1 * GB)
    memory.freed = 0
    asyncio.run(resume(maker(memory), memory, 3 * GB))
    assert memory.suspended == ["older"]
    room, memory.suspended = maker(memory), []
    memory.used = 5 * GB + GB // 2
    asyncio.run(room._make_room())
    assert memory.suspended == ["old"]


def test_a_shortage_suspends_no_more_after_a_suspend_that_frees_nothing(maker):
    memory = Memory({"older": 4 * GB, "old": 4 * GB}, GB + GB // 2)
    memory.freed = 0
    room = maker(memory)
    asyncio.run(room._make_room())
    assert memory.suspended == ["older"]
    assert room._pauses_until > 0


def test_a_kernel_that_was_used_or_resumed_a_moment_ago_is_spared(maker):
    memory = Memory({"used": 4 * GB, "resumed": 3 * GB, "long ago": 3 * GB})
    memory.cells["used"] = memory.resumes["resumed"] = 0.2
    asyncio.run(resume(maker(memory), memory, 2 * GB))
    assert memory.suspended == ["long ago"]


def test_a_resume_waits_for_a_kernel_that_was_used_a_moment_ago_but_not_for_long(maker):
    memory = Memory({"used": 4 * GB}, 5 * GB)
    memory.cells["used"] = 0.0
    begun = time.monotonic()
    asyncio.run(resume(maker(memory), memory, 2 * GB))
    assert memory.suspended == ["used"]
    assert time.monotonic() - begun >= 0.4


def test_two_resumes_do_not_get_the_same_memory(maker):
    memory = Memory({"old": 4 * GB})

    async def main():
        room = maker(memory)
        first = await resume(room, memory, 5 * GB)
        assert memory.suspended == []
        second = asyncio.create_task(resume(room, memory, 5 * GB))
        while not memory.said:  # noqa: ASYNC110
            await asyncio.sleep(0)
        assert "another kernel" in memory.said[0]
        memory.used += 4 * GB  # less than was expected
        first.end()
        await second
        assert memory.suspended == ["old"]

    asyncio.run(asyncio.wait_for(main(), PATIENCE))


def test_the_size_of_the_chosen_snapshot_counts(maker):
    memory = Memory({"old": 4 * GB})
    memory.snapshots_found = [
        SimpleNamespace(snapshot_id="s0", sizes=Sizes(raw_bytes=8 * GB)),
        SimpleNamespace(snapshot_id="s1", sizes=Sizes(raw_bytes=GB)),
    ]
    asyncio.run(resume(maker(memory), memory, GB, snapshot_id="s1"))
    assert memory.suspended == []
    asyncio.run(resume(maker(memory), memory, GB, snapshot_id="s0"))
    assert memory.suspended == ["old"]


def test_a_resume_that_is_canceled_waits_for_no_other(maker):
    memory = Memory({"old": 4 * GB}, 5 * GB)

    def check():
        raise OperationCancelled("It was canceled.")

    async def main():
        room = maker(memory)
        async with room._mutex:
            with pytest.raises(OperationCancelled):
                await resume(room, memory, 2 * GB, check)

    asyncio.run(asyncio.wait_for(main(), PATIENCE))
    assert (memory.suspended, memory.said[-1]) == ([], "")


def test_two_servers_of_a_machine_do_not_both_suspend_for_one_shortage(maker, monkeypatch):
    """Each waits for a random time and looks again, and the first has made room by then."""
    memory = Memory({"older": 2 * GB, "old": 2 * GB}, 5 * GB + GB // 2)
    rooms = [maker(memory), maker(memory)]
    longest, asked = 2.0, []
    monkeypatch.setattr(memory_room, "_JITTER_SECONDS", longest)

    def chance(low, high):
        asked.append((low, high))
        return low if len(asked) == 1 else 0.2

    monkeypatch.setattr(memory_room.random, "uniform", chance)

    async def both():
        await asyncio.gather(*(room._make_room() for room in rooms))

    asyncio.run(both())
    assert memory.suspended == ["older"]
    assert asked == [(0.0, longest)] * 2
