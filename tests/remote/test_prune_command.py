"""What `jupyter gpuckpt remote prune` asks, refuses and prints."""

from __future__ import annotations

import io
import json
import sys

import msgspec
import pytest

from jupyter_gpuckpt.cli import app
from jupyter_gpuckpt.daemon.remotes import remote_keys
from jupyter_gpuckpt.errors import RemoteObjectInvalid
from jupyter_gpuckpt.remote.lease_objects import Leases
from jupyter_gpuckpt.remote.remote_list import Remotes
from jupyter_gpuckpt.remote.remote_sessions import Sessions
from jupyter_gpuckpt.wire.remote_records import Remote
from jupyter_gpuckpt.wire.statuses import exit_code
from tests.remote.installations import store_of
from tests.remote.joined import join
from tests.remote.stores import chunks
from tests.remote.test_fetching import saved

#: Two machines of the same host name, and one of another.
FIRST, SECOND, OTHER = "1" * 32, "2" * 32, "3" * 32


class Terminal(io.StringIO):
    """A terminal on which somebody answers questions."""

    def isatty(self):
        return True


class Remembered:
    """A remote with three snapshots; other machines rely on two of them."""

    def __init__(self, data_dir, store, share, capsys, monkeypatch):
        self._data_dir, self._capsys, self._monkeypatch = data_dir, capsys, monkeypatch
        self.joined = join(data_dir, Remote("share", f"file://{share}"))
        monkeypatch.setenv("JUPYTER_GPUCKPT_DATA_DIR", str(data_dir))
        for number in (1, 2, 3):
            content = chunks(number, 2, 5_000)
            saved(store, f"s{number}", *content, kernel_id="k", created=float(number))
            self.joined.upload(store, f"s{number}", path="work/notes.ipynb")

    @property
    def opened(self):
        return remote_keys.opened(self._data_dir, self.joined.remote)

    @property
    def sessions(self):
        opened = self.opened
        return Sessions(opened.bucket, opened.key.seal, opened.seen)

    def marks(self):
        """Return the machines that rely on each snapshot."""
        found = {one.snapshot_id: one.relied_on_by for one in self.sessions.get("k").listed}
        return [sorted(found[f"s{number}"]) for number in (1, 2)]

    def mark(self, **by_snapshot):
        """Let machines rely on snapshots."""

        def mark(session):
            snapshots = [
                msgspec.structs.replace(one, relied_on_by=by_snapshot.get(one.snapshot_id, {}))
                for one in session.snapshots
            ]
            return msgspec.structs.replace(session, snapshots=snapshots)

        self.sessions.rewrite("k", mark)

    def listed(self):
        return sorted(one.snapshot_id for one in self.sessions.get("k").listed)

    def change_capabilities(self, **changes):
        """Record other capabilities of the remote than those that were tested."""

        def note(remote):
            found = msgspec.structs.replace(remote.capabilities, **changes)
            return msgspec.structs.replace(remote, capabilities=found)

        Remotes(self._data_dir).change("share", note)

    def said(self, *words, answer=None, status=0):
        """Run the command, on a terminal if there is an answer to a question; return what it printed."""
        stdin = io.StringIO() if answer is None else Terminal(answer + "\n")
        self._monkeypatch.setattr(sys, "stdin", stdin)
        found = app.main(["remote", "prune", "share", *words])
        printed = self._capsys.readouterr()
        assert found == status, printed
        return printed


@pytest.fixture
def remote(tmp_path, capsys, monkeypatch):
    with store_of(tmp_path / "one") as store:
        yield Remembered(tmp_path / "one", store, tmp_path / "share", capsys, monkeypatch)


def test_nothing_is_changed_before_all_is_answered(remote):
    remote.mark(s1={OTHER: "laptop"})
    words = ("--lost-machine", "laptop", "--keep-last", "1", "--manual-too")
    for more in ((), ("--json",)):
        refused = remote.said(*words, *more, answer="n", status=6)
        assert "Nothing was deleted" in refused.out + refused.err
        assert "laptop relies on 1 snapshot in remote share (s1)" in refused.err
        assert remote.marks() == [[OTHER], []]
    refused = remote.said(*words[2:], answer="n", status=6)
    assert "Delete this snapshot for ever?" in refused.err
    planned = json.loads(remote.said(*words, "--dry-run", "--json").out)["prune"]
    assert planned["lost"] == ["s1"]
    assert remote.marks() == [[OTHER], []]
    assert remote.listed() == ["s1", "s2", "s3"]
    done = remote.said(*words, answer="y\ny").out
    assert "1 snapshot that machine laptop relied on" in done
    assert "2 deleted, 1 stay." in done
    assert remote.listed() == ["s3"]


def test_the_command_shows_the_reasons_and_removes(remote):
    words = ("--keep-last", "2", "--manual-too")
    shown = remote.said(*words, "--dry-run").out.splitlines()
    assert [line.split()[0] for line in shown if line] == ["SNAPSHOT", "s3", "s2", "s1", "1"]
    assert "work/notes.ipynb" in shown[3]
    assert "delete" in shown[3]
    assert "the newest of its session" in shown[1]
    assert shown[-1].startswith("1 would be deleted, 2 stay. About ")
    assert remote.listed() == ["s1", "s2", "s3"]
    # Without a terminal it does not ask, so a timer can run it.
    assert remote.said(*words).out.splitlines()[-1].startswith("1 deleted, 2 stay. ")
    assert remote.listed() == ["s2", "s3"]
    assert remote.said(*words).out.splitlines()[-1].startswith("0 deleted, 2 stay. ")
    assert "Machines that have: none." in remote.said("--lost-machine", "laptop", status=2).err
    for few in ((), ("--manual-too",)):
        assert "No rule is given" in remote.said(*few, status=2).err


def test_where_nothing_can_be_deleted_nothing_is_removed(remote):
    remote.change_capabilities(deletes=False)
    refused = remote.said("--keep-last", "1", "--manual-too", status=2).err
    assert "does not let this machine delete anything" in refused
    assert remote.listed() == ["s1", "s2", "s3"]


def test_an_object_that_cannot_be_read_prevents_the_removal(remote, tmp_path):
    [epoch] = [tmp_path / "share/epoch"]
    epoch.write_bytes(b"damaged")
    remote.said("--keep-last", "1", "--manual-too", status=exit_code(RemoteObjectInvalid))
    assert remote.listed() == ["s1", "s2", "s3"]


def test_a_lost_machine_must_be_clear_and_lost(remote):
    remote.mark(s1={FIRST: "pod"}, s2={SECOND: "pod"})
    refused = remote.said("--lost-machine", "pod", status=2).err
    assert "2 machines with the host name pod" in refused
    assert f"{FIRST}, {SECOND}" in refused
    assert remote.marks() == [[FIRST], [SECOND]]
    remote.said("--lost-machine", FIRST)
    assert remote.marks() == [[], [SECOND]]
    # One of this name lives; which one is not known.
    opened = remote.opened
    leases = Leases(*(opened.bucket, opened.key.seal, remote.sessions, "daemon"), host_name="pod")
    leases.beat()
    assert "within the last hour" in remote.said("--lost-machine", "pod", status=2).err
    assert remote.marks() == [[], [SECOND]]
    leases.end()
    remote.said("--lost-machine", "pod")
    assert remote.marks() == [[], []]


def test_a_machine_lives_by_the_remotes_clock_whatever_the_clock_here_shows(remote):
    """It was tested while the clock here was two hours behind, and has been set right since."""
    remote.mark(s1={OTHER: "pod"})
    opened = remote.opened
    leases = Leases(*(opened.bucket, opened.key.seal, remote.sessions, "daemon"), host_name="pod")
    leases.beat()
    remote.change_capabilities(clock_ahead_seconds=2 * 3600.0)
    assert "within the last hour" in remote.said("--lost-machine", "pod", status=2).err
    assert remote.marks() == [[OTHER], []]
    assert list(opened.bucket.list("trial")) == []


def test_numbers_that_make_no_sense_are_refused(remote):
    for words in (
        ("--keep-last", "9" * 25),
        ("--keep-last", "9" * 5000),
        ("--keep-within", "9" * 400 + "d"),
        ("--keep-within", "9" * 9 + "d"),
        ("--max-size", "9" * 30 + "T"),
        ("--max-size", "9" * 320),
    ):
        refused = remote.said(*words, status=2).err
        assert f"argument {words[0]}: " in refused
        assert len(refused) < 300
    assert remote.listed() == ["s1", "s2", "s3"]
