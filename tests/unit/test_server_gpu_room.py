"""Who gives way on a GPU, and what one is told that waits: against a GPU of numbers. tests/gpu has the real one."""

import asyncio
import itertools
import logging
from types import SimpleNamespace

import pytest

from jupyter_gpuckpt.errors import FreezeFailed, GpuFull
from jupyter_gpuckpt.server.policies import gpu_room
from jupyter_gpuckpt.wire.protocol import GpuRoom, Kernel
from jupyter_gpuckpt.wire.states import KernelState


class Gpu:
    """10 bytes of GPU memory. `held`: by kernel; `idle`: kernels in which no cell runs, least recently used first.

    `contexts`: bytes of each kernel that may stay there when it is parked. `lately`: those of the idle ones that ran a cell a moment ago.
    """

    def __init__(self, held, idle, refusing=()):
        self.held, self.idle, self.refusing = held, idle, refusing
        self.needs, self.contexts = {"wanted": 6}, {}
        self.parked, self.said, self.lately = [], [], set()
        #: Parked kernels that no user has parked.
        self.automatically = set()
        #: Kernels of which something stays on the GPU although they were parked.
        self.stuck = set()
        #: Those that are parked now, and the times at which they were.
        self.since, self.times = {}, itertools.count()
        self.tasks = []
        self.manager = SimpleNamespace()

    @property
    def free(self):
        return 10 - sum(self.held.values())

    # The daemon's part.
    async def send(self, call):
        assert call.reply is GpuRoom
        await asyncio.sleep(0)
        *_, kernel_id, _ = call.path.split("/")
        return GpuRoom(self.needs.get(kernel_id, 0), self.free)

    # The server's operations.
    def served(self, kernel_id):
        return Served(self, kernel_id)

    def idle_kernels(self, *, after_seconds, parked_too):
        found = [each for each in self.idle if parked_too or each not in self.since]
        return [each for each in found if not (after_seconds and each in self.lately)]

    def spawn(self, work):
        self.tasks.append(asyncio.ensure_future(work))

    async def measured(self):
        return [
            Kernel(kernel_id, self.served(kernel_id).state, "", gpu_bytes=held)
            for kernel_id, held in self.held.items()
        ]

    async def resume(self, kernel_id):
        self.held[kernel_id] = self.needs.pop(kernel_id)
        del self.since[kernel_id]

    async def park(self, kernel_id, *, keep_contexts, is_automatic):
        assert is_automatic == (kernel_id in self.automatically or kernel_id not in self.since)
        if kernel_id in self.refusing:
            raise FreezeFailed(f"{kernel_id} has no room in RAM.")
        assert not (keep_contexts and kernel_id in self.since)
        self.parked.append(kernel_id)
        self.since[kernel_id] = next(self.times)
        if is_automatic:
            self.automatically.add(kernel_id)
        left = keep_contexts or kernel_id in self.stuck
        self.held[kernel_id] = self.contexts.get(kernel_id, 0) if left else 0
        return kernel_id

    async def finish(self, operation):
        return SimpleNamespace(error=None)


class Served:
    """A stand-in for the server's record of a kernel in its present state."""

    waits = ""

    def __init__(self, gpu, kernel_id):
        self._gpu, self.kernel_id = gpu, kernel_id
        self.wait_for = gpu.said.append

    @property
    def state(self):
        return KernelState.PARKED if self.kernel_id in self._gpu.since else KernelState.RUNNING

    @property
    def kernel(self):
        return SimpleNamespace(since=self._gpu.since.get(self.kernel_id))

    @property
    def is_wanted(self):
        return False

    @property
    def is_parked_automatically(self):
        return self.kernel_id in self._gpu.automatically


@pytest.fixture
def maker(monkeypatch):
    """Make a GpuRoom for a Gpu."""

    def make(gpu, wait_seconds=0.0):
        monkeypatch.setattr(
            gpu_room,
            "idle_kernels",
            lambda *_, **options: gpu.idle_kernels(**options),
        )
        monkeypatch.setattr(gpu_room, "manager_of", lambda *_: gpu.manager)
        monkeypatch.setattr(gpu_room, "_LOOK_SECONDS", 0.01)
        monkeypatch.setattr(gpu_room, "_SPARE_BYTES", 0)
        link = SimpleNamespace(daemon=gpu)
        log = logging.getLogger("test")
        return gpu_room.GpuRoom(link, None, gpu, None, wait_seconds=wait_seconds, log=log)

    return make


async def come_back(maker, gpu, kernel_id="wanted"):
    async with maker.made(kernel_id, ""):
        gpu.held[kernel_id] = gpu.needs.pop(kernel_id)


def test_nobody_is_parked_where_there_is_room(maker):
    gpu = Gpu({"other": 4}, ["other"])
    asyncio.run(come_back(maker(gpu), gpu))
    assert gpu.parked == []
    assert not asyncio.run(maker(gpu).is_needed("other", ""))


def test_as_many_give_way_as_it_takes_the_least_recently_used_first(maker):
    gpu = Gpu({"new": 3, "old": 3, "older": 3}, ["older", "old", "new"])
    asyncio.run(come_back(maker(gpu), gpu))
    assert gpu.parked == ["older", "old"]


def test_one_that_holds_nothing_or_cannot_be_parked_is_passed_over(maker):
    gpu = Gpu({"none": 0, "stuck": 3, "last": 6}, ["none", "stuck", "last"], refusing={"stuck"})
    asyncio.run(come_back(maker(gpu), gpu))
    assert gpu.parked == ["last"]


def test_contexts_are_taken_where_their_room_is_needed(maker):
    gpu = Gpu({"old": 4, "new": 4}, ["old", "new"])
    gpu.contexts = {"old": 2, "new": 2}
    asyncio.run(come_back(maker(gpu), gpu))
    assert gpu.parked == ["old", "new"]
    gpu.needs["wanted"] = 8
    gpu.held["wanted"] = 0
    asyncio.run(come_back(maker(gpu), gpu))
    assert gpu.parked == ["old", "new", "old"]
    assert gpu.held == {"old": 0, "new": 2, "wanted": 8}


def test_a_kernel_of_which_something_stays_there_is_parked_twice_at_most(maker):
    gpu = Gpu({"old": 8}, ["old"])
    gpu.contexts, gpu.stuck = {"old": 5}, {"old"}
    with pytest.raises(GpuFull):
        asyncio.run(come_back(maker(gpu), gpu))
    assert gpu.parked == ["old", "old"]


@pytest.mark.parametrize("spare", [1, 2, 3])
def test_contexts_stay_where_a_kernel_that_comes_back_can_take_more(maker, monkeypatch, spare):
    gpu = Gpu({"old": 8}, ["old"])
    gpu.contexts = {"old": 2}
    room = maker(gpu)
    monkeypatch.setattr(gpu_room, "_SPARE_BYTES", spare)
    asyncio.run(come_back(room, gpu))
    # 10 bytes, of which it has 6, and the context 2.
    assert gpu.held["old"] == (2 if spare <= 2 else 0)
    assert gpu.parked == (["old"] if spare <= 2 else ["old", "old"])


def test_no_running_kernel_is_parked_only_to_have_some_to_spare(maker, monkeypatch):
    gpu = Gpu({"old": 4}, ["old"])
    room = maker(gpu)
    monkeypatch.setattr(gpu_room, "_SPARE_BYTES", 3)
    asyncio.run(come_back(room, gpu))
    assert gpu.held == {"old": 4, "wanted": 6}


@pytest.mark.parametrize("comes_back", [False, True])
def test_the_context_of_a_kernel_that_stays_parked_is_taken_later(maker, monkeypatch, comes_back):
    gpu = Gpu({"old": 8}, ["old"])
    gpu.contexts = {"old": 1}
    monkeypatch.setattr(gpu_room, "_CONTEXT_SECONDS", 0.01)

    async def main():
        await come_back(maker(gpu), gpu)
        assert gpu.held["old"] == 1
        await asyncio.sleep(0)
        if comes_back:
            gpu.since["old"] = next(gpu.times)  # and it was parked again meanwhile
        for task in gpu.tasks:
            await task

    asyncio.run(main())
    assert gpu.parked == (["old"] if comes_back else ["old", "old"])


def test_it_waits_for_one_that_computes_and_says_so(maker):
    gpu = Gpu({"busy": 8}, [])

    async def main():
        waiting = asyncio.create_task(come_back(maker(gpu, 60.0), gpu))
        while not gpu.said:  # noqa: ASYNC110
            await asyncio.sleep(0)
        gpu.idle = ["busy"]
        await waiting

    asyncio.run(main())
    assert gpu.parked == ["busy"]
    assert "0.0 GB are free" in gpu.said[0]
    assert gpu.said[-1] == ""


def test_one_that_waits_in_vain_hears_why(maker):
    gpu = Gpu({"busy": 4, "stuck": 4}, ["stuck"], refusing={"stuck"})
    with pytest.raises(GpuFull, match="GPU memory are needed") as caught:
        asyncio.run(come_back(maker(gpu), gpu))
    assert caught.value.details == "stuck has no room in RAM."
    assert gpu.said[-1] == ""


def test_the_second_in_the_queue_waits_until_the_first_is_back(maker):
    gpu = Gpu({"other": 8}, ["other"])
    gpu.needs = {"wanted": 6, "second": 4}

    async def main():
        one = maker(gpu)
        await asyncio.gather(come_back(one, gpu), come_back(one, gpu, "second"))

    asyncio.run(main())
    assert gpu.held == {"other": 0, "wanted": 6, "second": 4}
    assert any("its turn" in text for text in gpu.said)


class Queued:
    """A Gpu whose kernel "busy" computes, and the task of each kernel that needs room there, by its name."""

    def __init__(self, maker, busy=6):
        self.gpu = Gpu({"busy": busy}, [])
        self.gpu.needs = {}
        self.room, self.tasks = maker(self.gpu, 60.0), {}

    async def add(self, name, needed):
        """Let a kernel come; return when it has room or has been told why it waits."""
        self.gpu.needs[name] = needed
        said = len(self.gpu.said)
        self.tasks[name] = asyncio.create_task(come_back(self.room, self.gpu, name))
        while len(self.gpu.said) == said and not self.tasks[name].done():  # noqa: ASYNC110
            await asyncio.sleep(0)

    @property
    def left(self):
        """Those that still wait, in the order in which they came."""
        return [name for name, task in self.tasks.items() if not task.done()]

    async def looks(self, number=3):
        """Wait until those that wait have looked so often."""
        for _ in range(number):
            await asyncio.sleep(2 * gpu_room._LOOK_SECONDS)


def test_one_that_needs_what_is_free_passes_those_that_wait_for_more(maker):
    async def main():
        queued = Queued(maker)
        await queued.add("large", 9)
        await queued.add("larger", 10)
        await queued.add("small", 3)
        await queued.tasks["small"]
        assert queued.left == ["large", "larger"]
        assert queued.gpu.parked == []
        queued.gpu.idle = ["busy", "small"]
        await queued.tasks["large"]
        assert queued.gpu.parked == ["busy", "small"]
        queued.gpu.idle = ["large"]
        await queued.tasks["larger"]

    asyncio.run(main())


def test_none_is_passed_for_ever(maker):
    async def main():
        queued = Queued(maker)
        await queued.add("large", 9)
        for number in range(gpu_room._MOST_PASSES):
            name = f"small {number}"
            await queued.add(name, 1)
            await queued.tasks[name]
        await queued.add("last", 1)
        await queued.looks()
        assert queued.gpu.free >= 1
        assert queued.left == ["large", "last"], "there is room for it, but it may not pass"
        queued.gpu.idle = [name for name, held in queued.gpu.held.items() if held]
        await queued.tasks["large"]
        await queued.tasks["last"]
        assert queued.gpu.held["large"] == 9

    asyncio.run(main())


def test_one_that_gives_up_lets_the_next_go_at_once(maker, monkeypatch):
    async def main():
        queued = Queued(maker)
        await queued.add("large", 9)
        monkeypatch.setattr(gpu_room, "_LOOK_SECONDS", 1000.0)
        queued.room._queue[0].passes = gpu_room._MOST_PASSES
        await queued.add("last", 1)
        queued.tasks["large"].cancel()
        await queued.tasks["last"]

    asyncio.run(main())


def parked(maker, **held):
    """Return a Gpu with a parked kernel "wanted" and these idle ones, and its GpuRoom."""
    gpu = Gpu(held, list(held))
    gpu.since, gpu.automatically = {"wanted": 0}, {"wanted"}
    return gpu, maker(gpu)


def test_a_kernel_whose_page_gets_the_focus_comes_back_where_there_is_room(maker):
    gpu, room = parked(maker, other=4)
    asyncio.run(room.expect_cell("wanted"))
    assert gpu.held == {"other": 4, "wanted": 6}
    assert gpu.parked == []
    assert gpu.manager.last_activity, "it is not the next to be parked"


def test_one_that_was_not_used_lately_is_parked_for_it(maker):
    gpu, room = parked(maker, other=8)
    asyncio.run(room.expect_cell("wanted"))
    assert gpu.held == {"other": 0, "wanted": 6}


def test_one_that_was_used_lately_is_not_parked_for_it(maker):
    gpu, room = parked(maker, other=8)
    gpu.lately = {"other"}
    asyncio.run(room.expect_cell("wanted"))
    assert gpu.held == {"other": 8}


@pytest.mark.parametrize("why", ["a user has parked it", "it runs", "others wait"])
def test_the_focus_changes_nothing_where(maker, why):
    async def main():
        gpu, room = parked(lambda gpu: maker(gpu, 60.0), other=4)
        if why == "a user has parked it":
            gpu.automatically = set()
        elif why == "it runs":
            gpu.since = {}
        else:
            gpu.needs["first"] = 9
            gpu.idle = []
            waiting = asyncio.create_task(come_back(room, gpu, "first"))
            while not gpu.said:  # noqa: ASYNC110
                await asyncio.sleep(0)
        await room.expect_cell("wanted")
        assert gpu.held == {"other": 4}
        if why == "others wait":
            waiting.cancel()

    asyncio.run(main())
