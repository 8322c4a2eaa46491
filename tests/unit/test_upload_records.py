"""What is shown of uploads, which of them comes next, and when a remote is tried again."""

from __future__ import annotations

import json
import time

import jsonschema
import msgspec
import pytest

from jupyter_gpuckpt.daemon.remotes import pauses
from jupyter_gpuckpt.daemon.remotes.sending import facts_of
from jupyter_gpuckpt.daemon.remotes.upload_queue import RemoteQueue, Uploaded
from jupyter_gpuckpt.errors import (
    AccessDenied,
    ConfigurationError,
    ErrorRecord,
    ObjectCorrupt,
    StoreUnavailable,
)
from jupyter_gpuckpt.remote.remote_sessions import MAX_TEXT_CHARACTERS
from jupyter_gpuckpt.server.rest_records import snapshot_view
from jupyter_gpuckpt.store.stub_files import Stub
from jupyter_gpuckpt.wire.manifest_records import SnapshotInfo
from jupyter_gpuckpt.wire.remote_records import Remote
from jupyter_gpuckpt.wire.snapshot_records import Snapshot, Traffic, Upload, UploadState
from tests.server.contract import DOCUMENT

#: Newest first.
HERE = {name: SnapshotInfo(name, "kernel", 9.0 - at, "save") for at, name in enumerate("abc")}
REMOTE = Remote("offsite", "file:///offsite")


@pytest.fixture
def queue():
    """Return the queue of a remote that has nothing."""
    return RemoteQueue(REMOTE, Uploaded())


def test_uploads_are_in_the_rest_interface_as_it_is_described():
    error = ErrorRecord("It is damaged.", "object_corrupt")
    uploads = [
        Upload("offsite", UploadState.UPLOADED, 5, 5),
        Upload("b", UploadState.FAILED, 0, 5, error),
    ]
    snapshot = Snapshot("s", "k", 1.0, "save", uploads=uploads)
    shown = json.loads(msgspec.json.encode(snapshot_view(snapshot)))
    schema = DOCUMENT["components"]["schemas"]["SnapshotView"]
    validator = jsonschema.Draft202012Validator(schema | {"components": DOCUMENT["components"]})
    validator.validate(shown)
    assert [one["state"] for one in shown["uploads"]] == ["uploaded", "failed"]
    assert shown["uploads"][1]["error"]["message"] == "It is damaged."


def test_what_a_user_asked_for_comes_first_then_the_newest(queue):
    assert list(queue.waiting(HERE)) == ["a", "b", "c"]
    queue.ask(["c"])
    assert list(queue.waiting(HERE)) == ["c", "a", "b"]
    queue.succeeded("c", HERE)
    assert list(queue.waiting(HERE)) == ["a", "b"]
    # What is not here any more is not kept on record.
    assert set(queue.uploaded.and_now("a", ["a", "b"]).snapshots) == {"a"}


def test_what_was_erased_there_goes_up_only_if_somebody_asks_for_it():
    here = HERE | {"other": SnapshotInfo("other", "another", 1.0, "save")}
    remote = Remote("offsite", "file:///offsite", erased={"kernel": time.time()})
    since = time.time()
    stubs = {"c": Stub("offsite", [])}
    queue = RemoteQueue(remote, Uploaded({"a": since - 10, "other": since - 10}, since), stubs)
    assert list(queue.waiting(here)) == []
    # It went up before, and is there no more; nor is what only the remote had.
    assert [queue.upload_of(here[one]) for one in "abc"] == [None, None, None]
    assert queue.upload_of(here["other"]).state is UploadState.UPLOADED
    assert queue.view(here, "", None).uploaded == 1
    queue.ask(["b"])
    assert queue.upload_of(here["b"]).state is UploadState.WAITING
    assert queue.next(here) == "b"
    queue.succeeded("b", here)
    assert queue.upload_of(here["b"]).state is UploadState.UPLOADED


def test_the_traffic_of_uploads_is_summed_up(queue):
    for one in "ab":
        queue.succeeded(one, HERE, Traffic(10**9, 5.0))
    assert queue.view(HERE, "", None).traffic == Traffic(2 * 10**9, 10.0)


@pytest.mark.parametrize("kind", [StoreUnavailable, AccessDenied])
def test_what_passes_by_itself_is_tried_again_later_and_later(queue, kind):
    waits = []
    for _ in range(30):
        queue.failed("a", kind("Not now."))
        waits.append(queue.seconds_left(HERE))
        assert queue.next(HERE) == ""
    assert waits[0] <= 2.0
    assert waits[-1] > waits[0]
    assert max(waits) <= 600.0
    assert queue.upload_of(HERE["a"]).state is UploadState.WAITING
    queue.ask(["a"])
    assert queue.next(HERE) == "a"


def test_a_snapshot_that_alone_meets_trouble_lets_the_others_go_first(queue, monkeypatch):
    monkeypatch.setattr(pauses, "_FIRST_SECONDS", 0.0)
    queue.failed("a", StoreUnavailable("Its session cannot be written."))
    assert queue.next(HERE) == "b"
    queue.failed("b", StoreUnavailable("The remote is down."))
    assert queue.next(HERE) == "a"
    assert queue.next({"a": HERE["a"]}) == "a"
    queue.take_left(["gone"])
    queue.failed("gone", StoreUnavailable("Its session cannot be read."))
    assert queue.next(HERE) == "a"


def test_a_daemon_gives_a_remote_up_after_an_hour(queue, monkeypatch):
    assert queue.is_worth_waiting(HERE)
    queue.failed("a", StoreUnavailable("Not now."))
    assert queue.is_worth_waiting(HERE)
    monkeypatch.setattr(pauses, "PATIENCE_SECONDS", 0.0)
    assert not queue.is_worth_waiting(HERE)
    assert not queue.is_worth_waiting({})


def test_what_is_wrong_with_the_remote_stops_it_until_it_is_changed(queue):
    queue.failed("a", ConfigurationError("The bucket does not exist."))
    assert queue.next(HERE) == ""
    assert queue.seconds_left(HERE) is None
    assert queue.upload_of(HERE["b"]).state is UploadState.FAILED
    assert queue.taken_over(REMOTE, Uploaded()).next(HERE) == "a"


def test_what_is_wrong_with_a_snapshot_is_its_own_error(queue):
    queue.failed("a", ObjectCorrupt("It is damaged."))
    assert queue.upload_of(HERE["a"]).error.message == "It is damaged."
    assert queue.upload_of(HERE["b"]).error is None
    assert list(queue.waiting(HERE)) == ["b", "c"]


def test_what_is_wrong_with_snapshots_delays_no_other(queue):
    for name in "ab":
        queue.failed(name, ObjectCorrupt("It is damaged."))
        assert queue.seconds_left(HERE) == 0.0
    assert queue.next(HERE) == "c"


def test_whoever_asked_is_told_what_is_wrong_with_the_remote():
    manual = RemoteQueue(Remote("offsite", "file:///offsite", automatic=False), Uploaded())
    manual.ask(["b"])
    manual.failed("b", ConfigurationError("The bucket does not exist."))
    assert manual.upload_of(HERE["b"]).state is UploadState.FAILED
    assert manual.upload_of(HERE["b"]).error.message == "The bucket does not exist."
    assert manual.upload_of(HERE["a"]) is None


def test_an_upload_to_what_the_remote_was_before_says_nothing_about_what_it_is_now(queue):
    queue.ask(["b"])
    now = queue.taken_over(Remote("offsite", "file:///elsewhere"), Uploaded())
    queue.succeeded("b", HERE)
    queue.failed("a", ConfigurationError("The bucket does not exist."))
    assert now.next(HERE) == "b"
    assert (now.uploaded, now.view(HERE, "", None).trouble) == (Uploaded(), None)


def test_uploads_of_what_is_gone_are_given_up_first_but_not_while_the_remote_is_paused(queue):
    queue.take_left(["gone"])
    assert queue.next(HERE) == "gone"
    queue.failed("gone", StoreUnavailable("Not now."))
    assert queue.seconds_left({}) > 0.0
    queue.ask([])
    queue.failed("gone", ObjectCorrupt("A defect."))
    queue.take_left(["gone", "other"])
    assert queue.next(HERE) == "other"
    queue.gave_up("other")
    assert queue.next(HERE) == "a"
    paused = RemoteQueue(msgspec.structs.replace(REMOTE, paused=True), Uploaded())
    paused.take_left(["gone"])
    assert paused.next(HERE) == ""
    assert paused.seconds_left({}) is None


def test_facts_are_what_is_known():
    info = SnapshotInfo("s", "kernel", 1.0, "save", name="python3", title="t" * 9999, host_name="h")
    facts = facts_of(info, {"hub_user": ["not", "a", "name"], "path": "p" * 9999})
    assert (facts.session_id, facts.hub_user, facts.server_name) == ("kernel", "", "")
    assert facts.path == "p" * MAX_TEXT_CHARACTERS
    assert facts.title == "t" * MAX_TEXT_CHARACTERS
    assert facts_of(info, {}).path == ""
