"""What is shown of uploads, which of them comes next, and when a remote is tried again."""

from __future__ import annotations

import json

import jsonschema
import msgspec
import pytest

from jupyter_gpuckpt.daemon import upload_queue
from jupyter_gpuckpt.daemon.far_facts import facts_of
from jupyter_gpuckpt.daemon.upload_queue import RemoteQueue, Uploaded
from jupyter_gpuckpt.errors import (
    AccessDenied,
    ConfigurationError,
    ErrorRecord,
    ObjectCorrupt,
    StoreUnavailable,
)
from jupyter_gpuckpt.model import SnapshotInfo
from jupyter_gpuckpt.remote_records import Remote
from jupyter_gpuckpt.server.views import snapshot_view
from jupyter_gpuckpt.snapshot_records import Snapshot, Upload, UploadState
from jupyter_gpuckpt.store.far.sessions import MOST_TEXT
from tests.server.contract import DOCUMENT

#: Newest first.
HERE = {name: SnapshotInfo(name, "kernel", 9.0 - at, "save") for at, name in enumerate("abc")}
REMOTE = Remote("far", "file:///far")


@pytest.fixture
def queue():
    """Return the queue of a remote that has nothing."""
    return RemoteQueue(REMOTE, Uploaded())


def test_uploads_are_in_the_rest_interface_as_it_is_described():
    error = ErrorRecord("It is damaged.", "object_corrupt")
    uploads = [
        Upload("far", UploadState.UPLOADED, 5, 5),
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
    queue.succeeded("c", queue.uploaded.and_now("c", HERE))
    assert list(queue.waiting(HERE)) == ["a", "b"]
    # What is not here any more is not kept on record.
    assert set(queue.uploaded.and_now("a", ["a", "b"]).snapshots) == {"a"}


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


def test_a_daemon_gives_a_remote_up_after_an_hour(queue, monkeypatch):
    assert queue.is_worth_waiting(HERE)
    queue.failed("a", StoreUnavailable("Not now."))
    assert queue.is_worth_waiting(HERE)
    monkeypatch.setattr(upload_queue, "PATIENCE_SECONDS", 0.0)
    assert not queue.is_worth_waiting(HERE)
    assert not queue.is_worth_waiting({})


def test_what_is_wrong_with_the_remote_stops_it_until_it_is_changed(queue):
    queue.failed("a", ConfigurationError("The bucket does not exist."))
    assert queue.next(HERE) == ""
    assert queue.seconds_left(HERE) is None
    assert queue.upload_of(HERE["b"]).state is UploadState.FAILED
    queue.change(REMOTE, Uploaded())
    assert queue.next(HERE) == "a"


def test_what_is_wrong_with_a_snapshot_is_its_own_error(queue):
    queue.failed("a", ObjectCorrupt("It is damaged."))
    assert queue.upload_of(HERE["a"]).error.message == "It is damaged."
    assert queue.upload_of(HERE["b"]).error is None
    assert list(queue.waiting(HERE)) == ["b", "c"]


def test_facts_are_what_is_known():
    info = SnapshotInfo("s", "kernel", 1.0, "save", name="python3", title="t" * 9999, host_name="h")
    facts = facts_of(info, {"hub_user": ["not", "a", "name"], "path": "p" * 9999})
    assert (facts.session_id, facts.hub_user, facts.server_name) == ("kernel", "", "")
    assert facts.path == "p" * MOST_TEXT
    assert facts.title == "t" * MOST_TEXT
    assert facts_of(info, {}).path == ""
