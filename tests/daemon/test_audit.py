"""The audit log: what was done to kernels and snapshots, for administrators, and nothing secret."""

import json
import logging
import os
import socket
import time
from datetime import UTC, datetime, timedelta

from jupyter_gpuckpt.daemon import audit
from jupyter_gpuckpt.errors import ErrorRecord
from jupyter_gpuckpt.wire import calls
from jupyter_gpuckpt.wire.manifest_records import Cause
from jupyter_gpuckpt.wire.protocol import Operation, OperationKind, OperationState, SaveRequest
from jupyter_gpuckpt.wire.snapshot_records import RetentionPolicy
from tests.conftest import wait_for

#: In a title and a message.
SECRET = "hunter2-in-a-title"


def lines_of(settings):
    """Return the entries of the only file of the audit log, and check that only the user may read it."""
    (path,) = (settings.data / "log").glob("audit-*.jsonl")
    assert path.stat().st_mode & 0o077 == 0
    text = path.read_text()
    assert SECRET not in text
    return [json.loads(line) for line in text.splitlines()]


def test_each_operation_and_each_change_of_snapshots_has_a_line_without_titles_and_environments(
    client, settings, kernel
):
    client.wait(client.send(calls.save(kernel.kernel_id, SaveRequest(name=SECRET))).operation_id)
    (saved,) = client.send(calls.snapshots())
    suspend = calls.suspend(kernel.kernel_id, SaveRequest(cause=Cause.SHUTDOWN))
    client.wait(client.send(suspend).operation_id)
    client.send(calls.delete_snapshot(saved.snapshot_id))
    client.wait(client.send(calls.resume(kernel.kernel_id)).operation_id)

    lines = lines_of(settings)
    save, suspend, delete, resume = lines
    assert [line["what"] for line in (save, suspend, resume)] == ["save", "suspend", "resume"]
    assert [line.get("cause") for line in lines] == ["manual", "shutdown", None, None]
    for line in lines:
        who = (line["outcome"], line["uid"], line["host"])
        assert who == ("succeeded", os.getuid(), socket.gethostname())
        age = datetime.now(UTC) - datetime.fromisoformat(line["time"])
        assert timedelta(0) <= age < timedelta(hours=1)
    assert (save["kernel_id"], save["snapshot_id"]) == (kernel.kernel_id, saved.snapshot_id)
    assert save["raw_bytes"] > save["new_bytes"] > 0
    assert save["seconds"] > 0
    assert delete["what"].startswith("DELETE /snapshots"), delete


def test_exports_ends_of_kernels_and_what_retention_removes_have_lines_but_no_dry_run(
    client, settings, kernel
):
    for _ in range(2):
        save = calls.save(kernel.kernel_id, SaveRequest(cause=Cause.AUTOSAVE))
        client.wait(client.send(save).operation_id)
    first, second = sorted(client.send(calls.snapshots()), key=lambda one: one.created)
    for dry_run in (True, False):
        client.send(calls.prune(RetentionPolicy(keep_last=1), dry_run=dry_run))
    with client.export(second.snapshot_id) as (length, pieces):
        assert sum(map(len, pieces)) == length
    client.send(calls.kill(kernel.kernel_id))
    wait_for(lambda: len(lines_of(settings)) == 5)
    saves, (removed, export, end) = lines_of(settings)[:2], lines_of(settings)[2:]
    assert [line["cause"] for line in saves] == ["autosave", "autosave"]
    assert (removed["what"], removed["cause"]) == ("remove", "retention")
    assert removed["snapshot_id"] == first.snapshot_id
    assert export["what"] == f"GET /snapshots/{second.snapshot_id}/export"
    assert end["what"] == f"DELETE /kernels/{kernel.kernel_id}"


def test_a_failed_operation_has_a_line_with_the_code_of_its_error(tmp_path, monkeypatch):
    monkeypatch.setattr(audit, "_log", logging.getLogger("an audit log of this test's own"))
    folder = tmp_path / "log"
    audit.log_to(folder, "place")
    error = ErrorRecord(f"The file {SECRET} is in the way.", "snapshot_failed")
    failed = Operation("o1", OperationKind.SAVE, "k1", OperationState.FAILED, error=error)
    audit.operation(failed, cause="idle")
    audit.removed(["s2"], "deletion")
    for unaudited in (
        ("GET", "/snapshots"),
        ("POST", "/snapshots/s1/verify"),
        ("POST", "/snapshots/prune"),
        ("POST", "/kernels/k1/signal"),
        ("GET", "/kernels/k1"),
    ):
        audit.request(*unaudited, 200)
    audit.request("PUT", "/kernels/k1/end", 200)
    audit.request("DELETE", "/snapshots/s1", 409)
    for handler in audit._log.handlers:
        handler.close()
    text = (folder / "audit-place.jsonl").read_text()
    assert SECRET not in text
    operation, removed, end, request = map(json.loads, text.splitlines())
    assert (operation["outcome"], operation["error"]) == ("failed", "snapshot_failed")
    assert operation["cause"] == "idle"
    assert (removed["what"], removed["snapshot_id"]) == ("remove", "s2")
    assert end["what"] == "PUT /kernels/k1/end"
    assert (request["what"], request["outcome"]) == ("DELETE /snapshots/s1", "failed")


def test_each_place_has_a_file_of_its_own_and_those_of_a_year_ago_are_removed(
    tmp_path, monkeypatch
):
    """Daemons of several machines share a home; two that rotate one file would lose lines."""
    for place in ("one", "two"):
        monkeypatch.setattr(audit, "_log", logging.getLogger(f"an audit log of {place}"))
        audit.log_to(tmp_path, place)
        audit.removed([place], "deletion")
    assert {path.name for path in tmp_path.iterdir()} == {"audit-one.jsonl", "audit-two.jsonl"}
    a_year_ago = time.time() - 366 * 24 * 3600
    os.utime(tmp_path / "audit-one.jsonl", (a_year_ago, a_year_ago))
    audit.log_to(tmp_path, "three")
    assert {path.name for path in tmp_path.iterdir()} == {"audit-two.jsonl"}
