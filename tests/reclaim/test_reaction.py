"""The parts of the reaction by themselves: records between versions, mirrors, the order of uploads, what a server does."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from types import SimpleNamespace

import msgspec
import pytest

from jupyter_gpuckpt.client.mirror import Mirror
from jupyter_gpuckpt.daemon.reclaim import reaction as reaction_module
from jupyter_gpuckpt.daemon.reclaim.reaction import Reaction
from jupyter_gpuckpt.daemon.reclaim.risks import _ago
from jupyter_gpuckpt.daemon.remotes.upload_queue import RemoteQueue, Uploaded
from jupyter_gpuckpt.daemon.remotes.uploads import Uploads
from jupyter_gpuckpt.daemon.snapshots.inventory import Inventory
from jupyter_gpuckpt.errors import DaemonUnavailable, KernelBusy, StoreUnavailable
from jupyter_gpuckpt.server.policies import reclaim as reclaim_module
from jupyter_gpuckpt.server.policies.reclaim import Reclaim
from jupyter_gpuckpt.server.policies.suspend_all import suspend_all
from jupyter_gpuckpt.wire import decoding
from jupyter_gpuckpt.wire.deadlines import Deadline
from jupyter_gpuckpt.wire.manifest_records import Cause, Sizes, SnapshotInfo
from jupyter_gpuckpt.wire.protocol import (
    Event,
    Kernel,
    Operation,
    OperationKind,
    OperationState,
    OwnerKind,
    Position,
    State,
)
from jupyter_gpuckpt.wire.reclaim_records import Notice, NoticeKind, NoticeRequest, now
from jupyter_gpuckpt.wire.remote_records import Remote
from jupyter_gpuckpt.wire.states import KernelState
from tests.conftest import PATIENCE

NOTICE = Notice("aws-spot:1", NoticeKind.RECLAIM, 100.0)


def test_daemons_and_clients_of_other_versions_get_along():
    told = msgspec.json.encode(Event(Position(1, 1), notice=NOTICE))
    assert decoding.from_json(told, Event).notice == NOTICE
    newer = told.replace(b'"disk_survives"', b'"of_a_later_version":{},"disk_survives"')
    assert decoding.from_json(newer, Event).notice == NOTICE
    older = b'{"position":[1,1],"state":{"kernels":[],"operations":[]}}'
    assert decoding.from_json(older, Event).state == State()

    class OlderEvent(msgspec.Struct, frozen=True):
        position: Position
        gone: str = ""

    assert decoding.from_json(told, OlderEvent) == OlderEvent(Position(1, 1))


@pytest.mark.parametrize(
    "text",
    [
        '{"name": ""}',
        '{"name": "x", "within_seconds": -1}',
        '{"name": "x", "within_seconds": 1e300}',
        '{"name": "%s"}' % ("x" * 101),
        '{"name": "x", "else": 1}',
    ],
)
def test_a_request_that_makes_no_sense_is_refused(text):
    with pytest.raises(msgspec.DecodeError):
        decoding.from_json(text, NoticeRequest)


def test_a_mirror_has_the_notices_that_stand():
    mirror = Mirror()
    mirror.apply(Event(Position(1, 1), State()))
    mirror.apply(Event(Position(1, 2), notice=NOTICE))
    assert mirror.notices == {NOTICE.id: NOTICE}
    # A full state in place of missed events: one notice is gone, and another is there.
    another = Notice("url:2", NoticeKind.REQUESTED)
    changes = mirror.apply(Event(Position(1, 9), State(notices=[another])))
    assert [change.notice for change in changes] == [
        msgspec.structs.replace(NOTICE, withdrawn=True),
        another,
    ]
    assert mirror.notices == {another.id: another}
    assert mirror.apply(Event(Position(1, 10), State(notices=[another]))) == []
    mirror.apply(Event(Position(1, 11), notice=msgspec.structs.replace(another, withdrawn=True)))
    assert mirror.notices == {}


def info(snapshot_id, kernel_id, stored_bytes):
    return SnapshotInfo(snapshot_id, kernel_id, 1.0, "save", sizes=Sizes(stored_bytes=stored_bytes))


#: Newest first.
HERE = {
    one.snapshot_id: one
    for one in (
        info("big", "first", 900),
        info("small", "second", 10),
        info("old-big", "first", 800),
        info("old-small", "second", 5),
    )
}


def test_in_a_hurry_the_newest_of_each_kernel_goes_first_the_smallest_before_others():
    queue = RemoteQueue(Remote("offsite", "file:///offsite"), Uploaded())
    queue.asked = ["old-big"]
    assert list(queue.waiting(HERE)) == ["old-big", "big", "small", "old-small"]
    queue.hurry(on=True)
    assert list(queue.waiting(HERE)) == ["small", "big", "old-small", "old-big"]
    assert next(iter(queue.taken_over(queue.remote, Uploaded()).waiting(HERE))) == "small"
    queue.hurry(on=False)
    assert next(iter(queue.waiting(HERE))) == "old-big"


def test_in_a_hurry_a_remote_that_failed_is_tried_at_once_and_a_paused_one_is_not():
    queue = RemoteQueue(Remote("offsite", "file:///offsite"), Uploaded())
    for _ in range(10):
        queue.failed("small", StoreUnavailable("It does not answer."))
    assert queue.next(HERE) == ""
    queue.hurry(on=True)
    assert queue.next(HERE) == "small"
    paused = RemoteQueue(Remote("offsite", "file:///offsite", paused=True), Uploaded())
    paused.hurry(on=True)
    assert paused.next(HERE) == ""


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(-5, "0 s"), (90, "90 s"), (150, "2 min"), (7200, "2 h"), (86400 * 2.6, "3 days")],
)
def test_the_age_of_an_upload_is_said_in_words(seconds, words):
    assert _ago(seconds) == words


class Kernels:
    """What the policy asks of a server: kernels that are saved, of which some refuse."""

    def __init__(self):
        self.states = {
            "a": KernelState.RUNNING,
            "refusing": KernelState.RUNNING,
            "failing": KernelState.RUNNING,
            "b": KernelState.SUSPENDED,
            "c": KernelState.RUNNING,
        }
        served = {one: self.served(one) for one in self.states}
        self.link = SimpleNamespace(served=served, daemon=self, managed=list)
        self.saved = []
        self.refused = {
            "refusing": KernelBusy("It is being saved."),
            "failing": ValueError("a defect"),
        }

    def list_kernel_ids(self):
        return list(self.states)

    def served(self, kernel_id):
        return SimpleNamespace(kernel=object(), state=self.states[kernel_id])

    async def save(self, kernel_id, *, cause):
        if kernel_id in self.refused:
            raise self.refused[kernel_id]
        self.saved.append((kernel_id, cause))

    async def finish(self, operation):
        return operation

    async def send(self, call):
        raise DaemonUnavailable("It does not answer.")

    async def measured(self):
        raise DaemonUnavailable("It does not answer.")


def test_for_a_machine_that_may_go_kernels_are_saved_once_and_run_on():
    kernels = Kernels()

    async def told():
        policy = Reclaim(kernels.link, kernels, kernels, logging.getLogger())
        notice = Notice("aws-rebalance:1", NoticeKind.REBALANCE)
        policy.notice_changed(notice)
        policy.notice_changed(notice)
        await policy._saves_in_case
        policy.notice_changed(msgspec.structs.replace(notice, withdrawn=True))

    asyncio.run(told())
    assert kernels.saved == [("a", Cause.AUTOSAVE), ("c", Cause.AUTOSAVE)]


class Slow(Kernels):
    """Kernels whose suspends take until they are canceled."""

    def __init__(self):
        super().__init__()
        self.link = SimpleNamespace(served={"a": self.served("a")}, daemon=self, managed=list)
        self.begun, self.ends = asyncio.Event(), asyncio.Event()

    async def require_answer(self):
        pass

    def list_kernel_ids(self):
        return ["a"]

    def record(self):
        running = Operation("o1", OperationKind.SUSPEND, "a", OperationState.RUNNING)
        operation = running if self.begun.is_set() else None
        return Kernel("a", KernelState.SUSPENDING, "server", operation=operation)

    def served(self, kernel_id):
        return SimpleNamespace(kernel=object(), state=self.states[kernel_id])

    async def measured(self):
        return [self.record()]

    async def suspend(self, kernel_id, *, cause):
        self.begun.set()
        return self.record().operation

    async def finish(self, operation):
        await self.ends.wait()
        return msgspec.structs.replace(operation, state=OperationState.CANCELLED)

    async def cancel(self, operation_id):
        self.saved.append(operation_id)
        self.ends.set()


def test_a_nearer_notice_undoes_what_was_begun_for_a_later_one():
    async def told():
        kernels = Slow()
        policy = Reclaim(kernels.link, kernels, kernels, logging.getLogger())
        later = Notice("requested:later", NoticeKind.REQUESTED, now() + 1000, is_due=True)
        policy.notice_changed(later)
        async with asyncio.timeout(60):
            await kernels.begun.wait()
            nearer = Notice("requested:nearer", NoticeKind.REQUESTED, now() + 0.2, is_due=True)
            policy.notice_changed(nearer)
            await kernels.ends.wait()
        await policy.server_stops()
        return kernels.saved

    assert asyncio.run(told()) == ["o1"]


def test_the_seconds_that_are_left_are_never_negative():
    assert NOTICE.seconds_left == 0.0
    assert 55 < Notice("a", NoticeKind.STOP, now() + 60).seconds_left <= 60
    assert Notice("a", NoticeKind.REBALANCE).seconds_left is None


def test_what_is_left_to_the_daemon():
    def kernel(kernel_id, owner=OwnerKind.SCRIPT, state=KernelState.RUNNING, **changes):
        entered_at = changes.pop("entered_at", 0.0)
        fields = {"ends": Deadline(), "owner": SimpleNamespace(kind=owner), **changes}
        return SimpleNamespace(
            kernel_id=kernel_id,
            owner_id=kernel_id,
            state=state,
            record=SimpleNamespace(**fields),
            entered_at=entered_at,
        )

    began = now() - 100
    kernels = [
        kernel("script"),
        kernel("parked", state=KernelState.PARKED),
        kernel("saving", state=KernelState.SAVING),
        kernel("suspending", state=KernelState.SUSPENDING),
        kernel("suspended", state=KernelState.SUSPENDED),
        kernel("starting", state=KernelState.STARTING),
        kernel("shut down", ends=Deadline(1e10)),
        kernel("resumed just now", entered_at=now() - 5),
        kernel("resumed a while ago", entered_at=now() - 50),
        kernel("server's", OwnerKind.SERVER),
        kernel("server's at work", OwnerKind.SERVER),
        kernel("server's that has worked", OwnerKind.SERVER),
        kernel("failed twice"),
    ]

    def operation(owner_id, ended_ago=None, kind=OperationKind.SUSPEND):
        ended_at = 0.0 if ended_ago is None else time.monotonic() - ended_ago
        return SimpleNamespace(
            kind=kind,
            kernel=SimpleNamespace(owner_id=owner_id),
            ended=ended_ago is not None,
            ended_at=ended_at,
        )

    operations = [
        operation("server's at work"),
        operation("server's that has worked", ended_ago=60),
        operation("server's", kind=OperationKind.SAVE),
    ]

    async def left(*, grace_is_over):
        reaction = Reaction(None, kernels, operations, None, None, None, None, None)
        reaction._tries.update(["failed twice", "failed twice", "script"])
        found = reaction._left_over(began, grace_is_over=grace_is_over)
        return [one.kernel_id for one in found]

    scripts = ["script", "parked", "saving", "resumed a while ago"]
    servers = ["server's", "server's that has worked"]
    assert asyncio.run(left(grace_is_over=False)) == scripts
    assert asyncio.run(left(grace_is_over=True)) == scripts + servers


@pytest.mark.parametrize("kind", [StoreUnavailable, OSError])
def test_a_store_that_fails_delays_no_suspend(caplog, kind):
    def snapshots(kernel_id):
        raise kind("The disk does not answer.")

    async def rate():
        machine = SimpleNamespace(snapshots=snapshots)
        reaction = Reaction(None, [], [], None, None, machine, None, None)
        return await reaction._measured_rate()

    assert asyncio.run(rate()) == 50e6
    assert "The disk does not answer" in caplog.text


class Nowhere:
    """Uploads without a remote."""

    is_anywhere = False

    def __init__(self):
        self.hurries = []

    def hurry(self, *, on):
        self.hurries.append(on)

    async def look(self):
        pass


def streams_of(told):
    """Return streams that only keep the notices that are published."""
    return SimpleNamespace(
        advance=lambda: Position(1, 1), publish=lambda event: told.append(event.notice)
    )


def test_a_due_notice_stays_due_when_kernels_are_suspended_until_it_is_put_off():
    async def reacted():
        told, uploads = [], Nowhere()
        usage = SimpleNamespace(memory_bytes=40 * 10**9, gpu_bytes=0)
        kernel = SimpleNamespace(state=KernelState.RUNNING, usage=usage)
        reaction = Reaction(
            streams_of(told), [kernel], [], None, None, None, uploads, acknowledge=None
        )
        notice = Notice("azure:1", NoticeKind.REQUESTED, now() + 700)
        reaction.take(notice)
        reaction._look()
        assert told[-1].is_due
        kernel.state = KernelState.SUSPENDED
        reaction._look()
        assert told[-1].is_due
        reaction.take(msgspec.structs.replace(notice, deadline=notice.deadline + 10))
        reaction._look()
        assert all(one.is_due for one in told[1:])
        assert uploads.hurries == []
        reaction.take(msgspec.structs.replace(notice, deadline=notice.deadline + 5000))
        reaction._look()
        assert not told[-1].is_due
        assert uploads.hurries == [False]
        await reaction.close()

    asyncio.run(reacted())


def test_when_the_due_one_of_two_notices_is_withdrawn_scripts_run_on_and_the_next_has_its_own_grace():
    async def reacted():
        resumed, uploads = asyncio.Event(), Nowhere()
        usage = SimpleNamespace(memory_bytes=10**9, gpu_bytes=0)
        kernel = SimpleNamespace(
            kernel_id="k",
            state=KernelState.SUSPENDED,
            usage=usage,
            in_flight=None,
            record=SimpleNamespace(ends=Deadline()),
        )
        kernels = type("Kernels", (list,), {"find": lambda self, kernel_id: kernel})([kernel])
        verbs = SimpleNamespace(resume=lambda kernel_id, request: resumed.set())
        reaction = Reaction(streams_of([]), kernels, [], verbs, None, None, uploads, None)
        sooner = Notice("azure:1", NoticeKind.REQUESTED, now() + 25, disk_survives=True)
        later = Notice("url:2", NoticeKind.REQUESTED, now() + 200, disk_survives=True)
        for notice in (sooner, later):
            reaction.take(notice)
        reaction._look()
        assert [one.is_due for one in reaction.standing()] == [True, False]
        reaction._due_since, reaction._grace_until = time.time(), now() + 3
        reaction._tries["k"] = 2
        reaction._of_scripts.add("k")
        reaction.take(msgspec.structs.replace(sooner, withdrawn=True))
        reaction._look()
        assert [one.is_saving for one in reaction.standing()] == [True]
        await asyncio.wait_for(resumed.wait(), PATIENCE)
        assert (reaction._due_since, reaction._grace_until, reaction._tries) == (0.0, 0.0, {})
        await reaction.close()

    asyncio.run(reacted())


def test_a_notice_that_becomes_due_while_scripts_are_resumed_leaves_the_others_suspended():
    async def reacted():
        asked, ended = asyncio.Event(), asyncio.Event()

        async def until_ended():
            asked.set()
            await ended.wait()

        usage = SimpleNamespace(memory_bytes=10**9, gpu_bytes=0)
        kernel = SimpleNamespace(
            kernel_id="k",
            state=KernelState.SUSPENDED,
            usage=usage,
            in_flight=SimpleNamespace(until_ended=until_ended),
            record=SimpleNamespace(ends=Deadline()),
        )
        kernels = type("Kernels", (list,), {"find": lambda self, kernel_id: kernel})([kernel])
        resumed = asyncio.Event()
        verbs = SimpleNamespace(resume=lambda kernel_id, request: resumed.set())
        reaction = Reaction(streams_of([]), kernels, [], verbs, None, None, Nowhere(), None)
        reaction._of_scripts.add("k")
        notice = Notice("azure:1", NoticeKind.REQUESTED, now() + 25, disk_survives=True)
        again = Notice("url:2", NoticeKind.REQUESTED, now() + 25, disk_survives=True)

        def change(notice, **changes):
            reaction.take(msgspec.structs.replace(notice, **changes))
            reaction._look()

        change(notice)
        change(notice, withdrawn=True)
        await asyncio.wait_for(asked.wait(), PATIENCE)
        resumes = reaction._resumes
        change(again)
        ended.set()
        await asyncio.wait({resumes})
        assert (resumed.is_set(), reaction._of_scripts) == (False, {"k"})
        change(again, withdrawn=True)
        await asyncio.wait_for(resumed.wait(), PATIENCE)
        assert reaction._of_scripts == set()
        await reaction.close()

    asyncio.run(reacted())


class Saved(Slow):
    """A stand-in for a kernel: its save begins when `may_begin` is set, and ends when it is canceled."""

    def __init__(self):
        super().__init__()
        self.may_begin = asyncio.Event()

    measured = Kernels.measured

    async def save(self, kernel_id, *, cause):
        self.begun.set()
        await self.may_begin.wait()
        return Operation("o1", OperationKind.SAVE, kernel_id, OperationState.RUNNING)


@pytest.mark.parametrize("request_waits", [False, True])
def test_a_users_interrupt_does_not_wait_for_a_save_before_the_machine_goes(request_waits):
    async def interrupted():
        kernels = Saved()
        policy = Reclaim(kernels.link, kernels, kernels, logging.getLogger())
        await policy.before_interrupt("a")
        policy.notice_changed(Notice("n", NoticeKind.RECLAIM, now() + 200, is_saving=True))
        await asyncio.wait_for(kernels.begun.wait(), PATIENCE)
        if not request_waits:
            kernels.may_begin.set()
            await asyncio.sleep(0)
        interrupt = asyncio.ensure_future(policy.before_interrupt("a"))
        await asyncio.sleep(0)
        kernels.may_begin.set()
        await asyncio.wait_for(interrupt, PATIENCE)
        assert kernels.saved == ["o1"]
        await policy._saves
        await policy.before_interrupt("a")
        assert kernels.saved == ["o1"], "it has ended"
        await policy.server_stops()

    asyncio.run(interrupted())


async def never(*_):
    await asyncio.Event().wait()


def test_kernels_are_saved_first_though_the_daemon_does_not_measure_them(monkeypatch):
    monkeypatch.setattr(reclaim_module, "_MEASURING_SECONDS", 0.05)

    async def told():
        kernels = Kernels()
        kernels.measured = never
        policy = Reclaim(kernels.link, kernels, kernels, logging.getLogger())
        policy.notice_changed(Notice("aws-rebalance:1", NoticeKind.REBALANCE))
        await asyncio.wait_for(policy._saves_in_case, PATIENCE)
        return kernels.saved

    assert asyncio.run(told()) == [("a", Cause.AUTOSAVE), ("c", Cause.AUTOSAVE)]


@pytest.mark.parametrize("measured", [never, Kernels().measured])
def test_kernels_that_cannot_be_measured_are_named_and_suspended_ones_are_saved(measured):
    kernels = Kernels()
    names = {"a": KernelState.RUNNING, "b": KernelState.SUSPENDED}
    known = {
        kernel_id: Kernel(kernel_id, state, "server", name=f"{kernel_id}.ipynb")
        for kernel_id, state in names.items()
    }
    kernels.served = lambda kernel_id: SimpleNamespace(kernel=known[kernel_id])
    kernels.measured = measured
    report = asyncio.run(suspend_all(kernels, known, 0.05))
    assert [(one.name, one.saved) for one in report.kernels] == [
        ("a.ipynb", False),
        ("b.ipynb", True),
    ]
    assert report.kernels[0].error.message


def test_an_order_that_fails_keeps_no_kernel_from_its_suspend(caplog):
    def order(*_):
        raise ValueError("a defect")

    async def suspended():
        kernels = Slow()
        report = await suspend_all(kernels, ["a"], 0.2, order=order)
        return kernels.saved, [one.saved for one in report.kernels]

    assert asyncio.run(suspended()) == (["o1"], [False])
    assert "kernels are suspended in any order" in caplog.text


def test_a_daemon_that_does_not_say_how_fast_uploads_are_delays_no_suspend(monkeypatch):
    monkeypatch.setattr(reclaim_module, "_RATE_SECONDS", 0.05)

    async def suspended():
        begun = asyncio.get_running_loop().create_future()

        async def suspend_all(operations, kernel_ids, within_seconds, *_, **__):
            begun.set_result(now() + within_seconds)

        monkeypatch.setattr(reclaim_module, "suspend_all", suspend_all)
        kernels = Kernels()
        kernels.send = never
        policy = Reclaim(kernels.link, kernels, kernels, logging.getLogger())
        due = Notice("n", NoticeKind.RECLAIM, now() + 100, is_due=True)
        policy.notice_changed(due)
        assert await asyncio.wait_for(begun, PATIENCE) == pytest.approx(due.deadline, abs=0.02)
        await policy.server_stops()

    asyncio.run(suspended())


def test_a_disk_that_does_not_answer_delays_no_suspend(monkeypatch, caplog):
    monkeypatch.setattr(reaction_module, "_UPLOADS_SECONDS", 0.05)
    monkeypatch.setattr(reaction_module, "_MEASURE_SECONDS", 0.05)
    answers = threading.Event()
    suspended = []

    async def suspend_each(kernels, asked, within_seconds, snapshots):
        suspended.append((kernels, now() + within_seconds))
        return []

    monkeypatch.setattr(reaction_module, "suspend_each", suspend_each)

    async def measure(kernels, *, exactly):
        pass

    record = Kernel("a", KernelState.RUNNING, "script")
    owner = SimpleNamespace(kind=OwnerKind.SCRIPT)
    kernel = SimpleNamespace(
        kernel_id="a", public=lambda: record, record=SimpleNamespace(owner=owner)
    )
    uploads = SimpleNamespace(views=never, look=never)

    async def reacted():
        machine = SimpleNamespace(snapshots=lambda kernel_id: answers.wait(PATIENCE))
        measuring = SimpleNamespace(measure=measure)
        reaction = Reaction(None, [kernel], [], None, measuring, machine, uploads, None)
        deadline = now() + 100
        await asyncio.wait_for(reaction._look_for_remotes(), PATIENCE / 2)
        await asyncio.wait_for(reaction._suspend([kernel], deadline), PATIENCE / 2)
        answers.set()
        assert suspended == [([record], pytest.approx(deadline, abs=0.02))]

    asyncio.run(reacted())
    assert "in any order" in caplog.text
    assert "the rate of uploads is not known" in caplog.text


def test_a_look_for_remotes_that_is_given_up_is_made_again(tmp_path):
    read, answers = [], threading.Event()

    async def looked():
        begun, loop = asyncio.Event(), asyncio.get_running_loop()

        def remotes():
            read.append(1)
            loop.call_soon_threadsafe(begun.set)
            answers.wait(PATIENCE)
            return []

        path = tmp_path / "remotes.json"
        path.touch()
        parts = {"is_busy": None, "tell": None, "on_lost": None}
        uploads = Uploads(None, tmp_path, **parts, inventory=Inventory([], None, None))
        uploads._remotes = SimpleNamespace(path=path, all=remotes)
        look = asyncio.ensure_future(uploads.look())
        await asyncio.wait_for(begun.wait(), PATIENCE)
        look.cancel()
        await asyncio.wait({look})
        answers.set()
        await uploads.look()
        await uploads.look()

    asyncio.run(looked())
    assert len(read) == 2


def test_saves_for_a_machine_that_may_go_end_with_the_server_and_when_it_goes():
    async def told(end):
        kernels = Saved()
        policy = Reclaim(kernels.link, kernels, kernels, logging.getLogger())
        policy.notice_changed(Notice("aws-rebalance:1", NoticeKind.REBALANCE))
        await asyncio.wait_for(kernels.begun.wait(), PATIENCE)
        saves = policy._saves_in_case
        end(policy)
        await asyncio.wait({saves}, timeout=PATIENCE)
        assert saves.cancelled()
        await policy.server_stops()
        policy.notice_changed(Notice("aws-rebalance:2", NoticeKind.REBALANCE))
        assert policy._saves_in_case is saves

    asyncio.run(told(lambda policy: asyncio.ensure_future(policy.server_stops())))
    due = Notice("n", NoticeKind.RECLAIM, now() + 100, is_due=True)
    asyncio.run(told(lambda policy: policy.notice_changed(due)))


def test_saves_give_way_to_a_due_notice_and_go_on_when_it_is_withdrawn():
    async def told():
        kernels = Saved()
        policy = Reclaim(kernels.link, kernels, kernels, logging.getLogger())
        policy.notice_changed(Notice("later", NoticeKind.RECLAIM, now() + 200, is_saving=True))
        await asyncio.wait_for(kernels.begun.wait(), PATIENCE)
        first = policy._saves
        due = Notice("sooner", NoticeKind.RECLAIM, now() + 100, is_due=True)
        policy.notice_changed(due)
        await asyncio.wait({first}, timeout=PATIENCE)
        assert first.cancelled()
        policy.notice_changed(msgspec.structs.replace(due, withdrawn=True))
        assert not policy._saves.done()
        await policy.server_stops()

    asyncio.run(told())
