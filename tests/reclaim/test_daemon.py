"""A real daemon whose machine goes: what becomes of its kernels and of their snapshots."""

from __future__ import annotations

import json
import sys
import time

import pytest

from jupyter_gpuckpt.cli import app
from jupyter_gpuckpt.wire import calls
from jupyter_gpuckpt.wire.protocol import OwnerKind, SaveRequest
from jupyter_gpuckpt.wire.reclaim_records import NoticeKind, NoticeRequest
from jupyter_gpuckpt.wire.snapshot_records import UploadState
from jupyter_gpuckpt.wire.states import KernelState
from tests.daemon.conftest import *  # noqa: F403 - fixtures
from tests.daemon.conftest import LARGE


@pytest.fixture
def aws_machine(aws, monkeypatch):
    """Make this machine one of Amazon's."""
    monkeypatch.setenv("JUPYTER_GPUCKPT_RECLAIM_PROVIDER", "aws")
    monkeypatch.setenv("JUPYTER_GPUCKPT_RECLAIM_ENDPOINT", aws.url)
    return aws


@pytest.fixture
def tell(azure, monkeypatch):
    """Return a function by which Azure says that this machine goes."""
    monkeypatch.setenv("JUPYTER_GPUCKPT_RECLAIM_PROVIDER", "azure")
    monkeypatch.setenv("JUPYTER_GPUCKPT_RECLAIM_ENDPOINT", azure.url)

    def say(within_seconds):
        azure.events.clear()
        azure.announce("told", "Preempt", within_seconds)

    return say


@pytest.fixture
def state(client):
    return lambda kernel: client.send(calls.kernel(kernel.kernel_id)).state


@pytest.fixture
def launch(client, spec, counts, eventually):
    def launched(owner, held_bytes=0):
        made = spec()
        if held_bytes:
            argv = [sys.executable, "-c", LARGE, made.argv[-1], str(held_bytes)]
            made = spec(argv, kernel_id=made.kernel_id)
        kernel = client.send(calls.launch(owner.owner_id, made))
        eventually(lambda: counts(kernel.kernel_id))
        return kernel

    return launched


@pytest.fixture
def script(client, owner_of):
    """Connect an owner whose kernels no server suspends."""
    with owner_of(client, OwnerKind.SCRIPT) as owner:
        yield owner


def give(client, within_seconds=0.0, name="test", **fields):
    return client.send(calls.give_notice(NoticeRequest(name, within_seconds, **fields)))


def client_notices(client):
    return [one.kind for one in client.send(calls.notices()).notices]


def of(events):
    return [event.notice for event in list(events) if event.notice is not None]


def log_of(settings):
    return settings.log_file.read_text()


def test_before_amazon_takes_the_machine_its_kernels_are_suspended_and_uploaded(
    aws_machine, add, settings, events, launch, owner, state_of, client, request
):
    eventually, state = map(request.getfixturevalue, ("eventually", "state"))
    # At this rate the second of its packs would have to wait for months.
    add(upload_rate=1)
    kernel = launch(owner, 80_000_000)
    eventually(lambda: aws_machine.count(aws_machine.SPOT))
    assert of(events) == []
    aws_machine.announce(50)
    deadline = time.monotonic() + 50
    eventually(lambda: of(events))
    notice = of(events)[-1]
    assert (notice.kind, notice.disk_survives) == (NoticeKind.RECLAIM, False)
    assert 30 < notice.seconds_left < 52
    eventually(lambda: of(events)[-1].is_due)
    # Its server does nothing.
    eventually(lambda: state(kernel) is KernelState.SUSPENDED)
    (snapshot,) = client.send(calls.snapshots(kernel.kernel_id))
    eventually(lambda: state_of(client, snapshot.snapshot_id).state is UploadState.UPLOADED)
    assert time.monotonic() < deadline
    report = client.send(calls.notices())
    assert ([one.id for one in report.notices], report.unsafe) == ([notice.id], [])
    assert report.has_remote
    assert "No remote has anything of it" in log_of(settings)


def test_with_time_kernels_are_saved_and_uploaded_while_they_run_and_suspended_later(
    tell, add, events, launch, counts, client, request
):
    eventually, state, state_of = map(request.getfixturevalue, ("eventually", "state", "state_of"))
    owner, script = map(request.getfixturevalue, ("owner", "script"))

    def is_uploaded(snapshot_id):
        return state_of(client, snapshot_id).state is UploadState.UPLOADED

    add()
    # The server of one of them does nothing.
    kernels = [launch(script), launch(owner)]
    tell(200)
    eventually(lambda: of(events) and of(events)[-1].is_saving)
    first = []
    for kernel in kernels:
        saved = eventually(lambda kernel=kernel: client.send(calls.snapshots(kernel.kernel_id)))
        first.append(saved[0].snapshot_id)
        eventually(lambda: is_uploaded(first[-1]))
        before = counts(kernel.kernel_id)
        eventually(lambda kernel=kernel, before=before: counts(kernel.kernel_id) > before)
        assert state(kernel) is KernelState.RUNNING
    assert not of(events)[-1].is_due
    tell(29)
    eventually(lambda: of(events)[-1].is_due)
    for kernel in kernels:
        eventually(lambda kernel=kernel: state(kernel) is KernelState.SUSPENDED)
        (last, before) = client.send(calls.snapshots(kernel.kernel_id))
        assert before.snapshot_id in first
        eventually(lambda last=last: is_uploaded(last.snapshot_id))


def test_a_servers_kernels_are_left_to_it_while_it_works(
    settings, owner, launch, client, state, eventually
):
    first, second = launch(owner), launch(owner)
    give(client, 100.0, disk_survives=True)
    operation = client.send(calls.suspend(first.kernel_id, SaveRequest(title="the server's")))
    client.wait(operation.operation_id)
    assert state(second) is KernelState.RUNNING
    eventually(lambda: state(second) is KernelState.SUSPENDED)
    titles = {one.kernel_id: one.title for one in client.send(calls.snapshots())}
    assert titles == {first.kernel_id: "the server's", second.kernel_id: ""}


def test_a_notice_that_is_withdrawn_brings_scripts_kernels_back(
    script, launch, client, state, counts, eventually
):
    kernel = launch(script)
    assert [one.is_running for one in give(client, 100.0).unsafe] == [True]
    eventually(lambda: state(kernel) is KernelState.SUSPENDED)
    assert client.send(calls.notices()).unsafe == [], "without a remote nothing can be uploaded"
    report = give(client, withdrawn=True)
    assert report.notices == []
    eventually(lambda: state(kernel) is KernelState.RUNNING)
    before = counts(kernel.kernel_id)
    eventually(lambda: counts(kernel.kernel_id) > before)


def test_nothing_begins_before_it_is_time_and_a_second_notice_counts(
    owner, events, script, launch, client, state, eventually
):
    kernel = launch(script)
    give(client, 100_000.0, "later")
    eventually(lambda: of(events))
    assert not of(events)[-1].is_due
    give(client, 100_000.0, "withdrawn at once")
    give(client, name="withdrawn at once", withdrawn=True)
    assert state(kernel) is KernelState.RUNNING
    give(client, 100.0, "sooner")
    eventually(lambda: state(kernel) is KernelState.SUSPENDED)
    due = {one.id for one in client.send(calls.notices()).notices if one.is_due}
    assert due == {"requested:sooner"}


def test_a_notice_that_comes_closer_is_the_same_one(script, launch, client, state, eventually):
    kernel = launch(script)
    give(client, 100_000.0)
    give(client, 100.0)
    assert len(client.send(calls.notices()).notices) == 1
    eventually(lambda: state(kernel) is KernelState.SUSPENDED)


def test_what_cannot_be_suspended_in_time_runs_on_and_keeps_its_snapshots(
    settings, script, launch, client, state, counts, eventually
):
    kernel = launch(script, 700_000_000)
    saved = client.wait(client.send(calls.save(kernel.kernel_id)).operation_id)
    give(client, 0.25, disk_survives=True)
    eventually(lambda: "is not safe at the deadline: it runs on" in log_of(settings))
    eventually(lambda: state(kernel) is KernelState.RUNNING)
    before = counts(kernel.kernel_id)
    eventually(lambda: counts(kernel.kernel_id) > before)
    found = [one.snapshot_id for one in client.send(calls.snapshots(kernel.kernel_id))]
    assert found == [saved.snapshot_id]


def test_a_server_that_connects_later_is_told(client, owner_of, eventually):
    give(client, 100_000.0)
    later = []
    with owner_of(client, on_event=later.append):
        eventually(lambda: [one.id for one in of(later)] == ["requested:test"])


@pytest.mark.parametrize("off", [False, True])
def test_where_notices_are_off_nobody_is_asked(aws_machine, monkeypatch, off, request, eventually):
    if off:
        monkeypatch.setenv("JUPYTER_GPUCKPT_RECLAIM_NOTICES", "0")
    client = request.getfixturevalue("client")
    client.send(calls.kernels())
    if off:
        time.sleep(0.5)
        assert aws_machine.requests == []
    else:
        eventually(lambda: aws_machine.requests)


def test_a_hook_waits_until_kernels_are_safe(script, launch, state, capsys, eventually):
    kernel = launch(script)
    assert app.main(["notice", "--json", "--within", "100s"]) == 0
    assert state(kernel) is KernelState.SUSPENDED
    report = json.loads(capsys.readouterr().out)
    assert [one["id"] for one in report["notices"]] == ["requested:hook"]
    assert report["unsafe"] == []
    assert app.main(["notice", "--withdraw"]) == 0
    eventually(lambda: state(kernel) is KernelState.RUNNING)


def test_a_hook_says_what_is_not_safe(script, launch, capsys):
    launch(script, 700_000_000)
    assert app.main(["notice", "--within", "0.2s"]) == 11
    said = capsys.readouterr()
    assert "uploaded nowhere" in said.err
    assert said.out.splitlines()[0].split() == ["KERNEL", "NAME", "NOW", "UPLOADED", "AS", "OF"]
    assert app.main(["notice"]) == 2
