"""The audit log: what was done to kernels and snapshots, for administrators, and nothing secret."""

import json
import logging
import os
from datetime import UTC, datetime, timedelta

from jupyter_gpuckpt import calls
from jupyter_gpuckpt.daemon import audit
from jupyter_gpuckpt.errors import ErrorRecord
from jupyter_gpuckpt.protocol import Operation, OperationKind, OperationState, SaveRequest

#: In a title and a message.
SECRET = "hunter2-in-a-title"


def test_each_operation_and_each_change_of_snapshots_has_a_line_without_titles_and_environments(
    client, settings, kernel
):
    client.wait(client.send(calls.save(kernel.kernel_id, SaveRequest(name=SECRET))).operation_id)
    (saved,) = client.send(calls.snapshots())
    client.wait(client.send(calls.suspend(kernel.kernel_id)).operation_id)
    client.send(calls.delete_snapshot(saved.snapshot_id))
    client.wait(client.send(calls.resume(kernel.kernel_id)).operation_id)

    path = settings.data / "log/audit.jsonl"
    assert path.stat().st_mode & 0o077 == 0
    text = path.read_text()
    assert SECRET not in text
    lines = [json.loads(line) for line in text.splitlines()]
    save, suspend, delete, resume = lines
    assert [line["what"] for line in (save, suspend, resume)] == ["save", "suspend", "resume"]
    for line in lines:
        assert (line["outcome"], line["uid"]) == ("succeeded", os.getuid())
        age = datetime.now(UTC) - datetime.fromisoformat(line["time"])
        assert timedelta(0) <= age < timedelta(hours=1)
    assert (save["kernel_id"], save["snapshot_id"]) == (kernel.kernel_id, saved.snapshot_id)
    assert save["raw_bytes"] > save["new_bytes"] > 0
    assert save["seconds"] > 0
    assert delete["what"].startswith("DELETE /snapshots"), delete


def test_a_failed_operation_has_a_line_with_the_code_of_its_error(tmp_path, monkeypatch):
    monkeypatch.setattr(audit, "_log", logging.getLogger("an audit log of this test's own"))
    path = tmp_path / "log/audit.jsonl"
    audit.log_to(path)
    error = ErrorRecord(f"The file {SECRET} is in the way.", "snapshot_failed")
    failed = Operation("o1", OperationKind.SAVE, "k1", OperationState.FAILED, error=error)
    audit.operation(failed, is_automatic=True)
    audit.request("GET", "/snapshots", 200)
    audit.request("DELETE", "/snapshots/s1", 409)
    for handler in audit._log.handlers:
        handler.close()
    text = path.read_text()
    assert SECRET not in text
    operation, request = map(json.loads, text.splitlines())
    assert (operation["outcome"], operation["error"]) == ("failed", "snapshot_failed")
    assert operation["automatic"] is True
    assert (request["what"], request["outcome"]) == ("DELETE /snapshots/s1", "failed")
