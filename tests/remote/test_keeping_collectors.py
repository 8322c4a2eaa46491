"""What a machine remembers and logs of the rule by which it collects in a remote."""

from __future__ import annotations

import json
import logging

import pytest

from jupyter_gpuckpt.daemon import audit
from jupyter_gpuckpt.daemon.remotes import collector_process, remote_keys
from jupyter_gpuckpt.errors import StoreUnavailable
from jupyter_gpuckpt.remote import collector, epochs, rules
from jupyter_gpuckpt.remote.remote_list import state_folder
from jupyter_gpuckpt.remote.remote_sessions import Sessions
from jupyter_gpuckpt.wire.remote_records import Remote
from jupyter_gpuckpt.wire.retention_policy import RetentionPolicy
from tests.remote.installations import store_of
from tests.remote.stores import chunks
from tests.remote.test_fetching import saved
from tests.remote.test_remote_collecting import Collecting, age

RULE = RetentionPolicy(keep_last=1, manual_too=True)


class Here(Collecting):
    """A machine that collects in this process, which takes less time than another one."""

    def _asked(self, task):
        return collector_process.collected(task)

    @property
    def opened(self):
        return remote_keys.opened(self.joined.data_dir, self.joined.remote)

    def listed(self):
        opened = self.opened
        session = Sessions(opened.bucket, opened.key.seal, opened.seen).get("k")
        return sorted(one.snapshot_id for one in session.listed)

    def rule(self, policy):
        opened = self.opened
        where = (opened.bucket, opened.key.seal, opened.seen)
        return rules.replace(*where, policy, host_name="here", now=1.0)

    def upload(self, *numbers):
        """Upload snapshots of one kernel."""
        with store_of(self.joined.data_dir) as store:
            for number in numbers:
                name = f"s{number}"
                saved(store, name, *chunks(number, 2), kernel_id="k", created=float(number))
                self.joined.upload(store, name, title="Mine")

    def collects(self, share):
        """Collect now; return what came of it."""
        if (share / epochs.NAME).exists():
            age(share / epochs.NAME, 2)
        self.be_due()
        return self.looks().collected


@pytest.fixture
def share(tmp_path):
    return tmp_path / "share"


@pytest.fixture
def one(tmp_path, share):
    found = Here(tmp_path / "one", Remote("share", f"file://{share}"))
    found.upload(1, 2, 3)
    return found


@pytest.fixture
def two(one, tmp_path, share):
    """Return a machine that has nothing in the remote."""
    return Here(tmp_path / "two", Remote("share", f"file://{share}"), one.joined.line)


def test_an_old_rule_that_is_put_back_is_refused_by_collectors(one, two, share):
    one.rule(RULE)
    old = (share / rules.NAME).read_bytes()
    one.rule(RetentionPolicy())
    assert two.collects(share).error is None
    seen = json.loads((state_folder(two.joined.data_dir, "share") / "seen.json").read_text())
    assert seen["generations"][rules.NAME] == 2
    (share / rules.NAME).write_bytes(old)
    assert two.collects(share).error.code == "far_object_invalid"
    assert one.listed() == ["s1", "s2", "s3"]


def refused(*_):
    raise StoreUnavailable("The remote is gone.")


def test_the_log_names_what_a_rule_removed_even_if_the_collection_fails(
    one, two, share, caplog, monkeypatch
):
    one.rule(RULE)
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(collector.roots, "read", refused)
    assert two.collects(share).error.code == "store_unavailable"
    lines = [one.getMessage() for one in caplog.records]
    [line] = [line for line in lines if line.startswith("rule 1 of remote share removed")]
    before, _, names = line.rpartition(": ")
    assert before.endswith("from session k")
    assert sorted(names.split(", ")) == ["s1", "s2"]
    assert any(line.startswith("nothing was collected in remote share") for line in lines)
    assert not any("Mine" in line for line in lines)
    assert one.listed() == ["s3"]


def test_the_audit_log_has_what_a_rule_removed(one, share, tmp_path, monkeypatch):
    monkeypatch.setattr(audit, "_log", logging.getLogger("an audit log of this collector's own"))
    audit.log_to(tmp_path / "log", "here")
    one.rule(RULE)
    one.collects(share)
    for handler in audit._log.handlers:
        handler.close()
    found = map(json.loads, (tmp_path / "log" / "audit-here.jsonl").read_text().splitlines())
    lines = {(line["what"], line["snapshot_id"], line["cause"]) for line in found}
    assert lines == {("remove", name, "rule 1 of remote share") for name in ("s1", "s2")}


def test_what_is_listed_is_checked_only_after_the_rule_has_removed_something(one, share):
    one.collects(share)
    assert one.checked == []
    one.rule(RULE)
    assert one.collects(share).dropped == 2
    assert one.checked == ["share"]
