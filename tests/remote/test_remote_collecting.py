"""The collector's schedule: not where somebody else has just done it, not where it costs somebody, and never harmful."""

from __future__ import annotations

import asyncio
import os
import time

import msgspec
import pytest

from jupyter_gpuckpt.cli.remote import upload_command
from jupyter_gpuckpt.daemon.remotes import remote_keys
from jupyter_gpuckpt.daemon.remotes.collecting import RemoteCollecting
from jupyter_gpuckpt.remote.remote_sessions import Sessions
from jupyter_gpuckpt.wire.remote_records import Remote, RemoteVerb
from jupyter_gpuckpt.wire.snapshot_records import RemoteCollection, RemoteUploads
from tests.remote.installations import ask, save, some_chunks, store_of
from tests.remote.joined import join
from tests.remote.stores import mark_deleted

HOUR = 3600.0


class Collecting(RemoteCollecting):
    """A machine that collects every hour, as far as it is told to look."""

    def __init__(self, data_dir, remote, line=""):
        self.joined, self.is_busy = join(data_dir, remote, line), False
        super().__init__(data_dir, HOUR, lambda: self.is_busy)

    def looks(self):
        """Look, and return what was collected from here."""
        asyncio.run(self.look())
        return self.added_to([RemoteUploads(remote="share", automatic=True, paused=False)])[0]

    def be_due(self):
        self._note(self.joined.remote, RemoteCollection(looked_at=1.0))


@pytest.fixture
def share(tmp_path):
    return tmp_path / "share"


@pytest.fixture
def one(tmp_path, share):
    """Return a machine whose remote has a snapshot, and packs that only a deleted one needed."""
    found = Collecting(tmp_path / "one", Remote("share", f"file://{share}"))
    with store_of(tmp_path / "one") as store:
        for number in (1, 2):
            save(store, f"s{number}", *some_chunks(number, 2))
            found.joined.upload(store, f"s{number}")
    opened = remote_keys.opened(tmp_path / "one", found.joined.remote)
    sessions = Sessions(opened.bucket, opened.key.seal, opened.seen)
    mark_deleted(sessions, "of-s1", "s1", time.time() - 3 * 24 * HOUR)
    age(share / "packs", 3 * 24)
    return found


def age(folder, hours):
    """Have everything in the remote written so long ago."""
    for path in folder.iterdir() if folder.is_dir() else [folder]:
        os.utime(path, (time.time() - hours * HOUR,) * 2)


def packs(share):
    return len(list((share / "packs").iterdir()))


@pytest.mark.slow
def test_what_nothing_needs_goes_by_itself_the_second_time(one, share, capsys):
    # It was added just now.
    assert one.looks().collected.at == 0
    assert not (share / "epoch").exists()
    one.be_due()
    first = one.looks().collected
    assert (first.removed, first.condemned, first.error) == (0, 1, None)
    assert packs(share) == 2
    # It is not due again, on this machine and on others, until it is old.
    assert one.looks().collected == first
    one.be_due()
    assert one.looks().collected.at == 0
    age(share / "epoch", 2)
    one.be_due()
    view = one.looks()
    assert (view.collected.removed, view.collected.condemned) == (1, 0)
    assert packs(share) == 1
    [line] = upload_command._collected(view)
    assert line.startswith("share: 1 unneeded pack (2.1 MB) removed just now")


def test_of_two_machines_one_collects(one, share, tmp_path):
    two = Collecting(tmp_path / "two", Remote("share", f"file://{share}"), one.joined.line)
    for machine in (one, two):
        machine.be_due()
    assert [bool(machine.looks().collected.at) for machine in (one, two)] == [True, False]


def test_nothing_is_collected_where_it_would_cost_somebody(one, share):
    one.be_due()
    one.is_busy = True
    one.looks()
    one.is_busy = False
    ask(RemoteVerb.PAUSE, one.joined.data_dir, "share")
    one.looks()
    assert not (share / "epoch").exists()
    ask(RemoteVerb.RESUME, one.joined.data_dir, "share")
    assert one.looks().collected.at


def test_a_failure_is_told_and_what_was_collected_before_stays(one, share):
    one.be_due()
    before = one.looks().collected
    (share / "epoch").write_text("This is none.")
    age(share / "epoch", 2)
    one._note(one.joined.remote, msgspec.structs.replace(before, looked_at=1.0))
    view = one.looks()
    assert (view.collected.at, view.collected.error.code) == (before.at, "remote_object_invalid")
    assert "could not be removed" in upload_command._collected(view)[-1]


def test_a_daemon_that_leaves_ends_its_collector(one, share):
    one.be_due()

    async def leave():
        looking = asyncio.create_task(one.look())
        while one._sending is None:  # noqa: ASYNC110 - of another thread
            await asyncio.sleep(0)
        await one.close()
        await looking

    asyncio.run(leave())
    assert one._last("share").at == 0
    one._is_over = False
    age(share, 2)
    assert one.looks().collected.at
