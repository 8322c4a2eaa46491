"""The daily check that a remote still lists what this machine has uploaded."""

from __future__ import annotations

import asyncio
import contextlib
import time

import msgspec
import pytest

from jupyter_gpuckpt.daemon.remotes import remote_keys
from jupyter_gpuckpt.daemon.remotes.listed_checks import ListedChecks
from jupyter_gpuckpt.daemon.remotes.upload_queue import read_uploaded, record_path
from jupyter_gpuckpt.remote.remote_list import Remotes, state_folder
from jupyter_gpuckpt.remote.remote_sessions import Sessions
from jupyter_gpuckpt.wire.remote_records import Remote
from jupyter_gpuckpt.wire.snapshot_records import UploadRequest, UploadState
from tests.remote.test_near_copy import Near


class Checked(Near):
    """A machine that has uploaded two snapshots to a remote to which nothing is uploaded automatically."""

    def __init__(self, data_dir, share):
        super().__init__(data_dir, share)
        self.checks = ListedChecks(data_dir, self.uploads, lambda: False)
        for number in (1, 2):
            self.save(number)

    def states(self):
        """Return whether the remote has the snapshots, as far as this machine knows."""
        found = [self.uploads.upload_to("share", f"s{number}") for number in (1, 2)]
        return [one is not None and one.state is UploadState.UPLOADED for one in found]

    def configure(self, **changes):
        """Change the remote."""
        Remotes(self.data_dir).change("share", lambda one: msgspec.structs.replace(one, **changes))

    def delete_there(self, at):
        """Delete the first snapshot in the remote, or undo that."""

        def change(session):
            changed = [msgspec.structs.replace(one, deleted_at=at) for one in session.snapshots]
            return msgspec.structs.replace(session, snapshots=changed)

        opened = remote_keys.opened(self.data_dir, self.joined.remote)
        Sessions(opened.bucket, opened.key.seal, opened.seen).rewrite("k1", change)

    async def recorded(self, condition):
        """Wait until the record of uploads, which a thread writes, fulfills a condition."""
        async with asyncio.timeout(60):
            path = record_path(self.data_dir, "share")
            while not condition(read_uploaded(path)):  # noqa: ASYNC110 - of a thread
                await asyncio.sleep(0.01)

    async def look(self, *, due):
        """Check what is due; with `due` a day has passed."""
        if due:
            path = state_folder(self.data_dir, "share") / "checked"
            path.unlink(missing_ok=True)
        await self.checks.look()


@pytest.fixture
def checked(tmp_path):
    """Run a test in the event loop."""

    def run(test):
        async def main():
            machine = Checked(tmp_path / "one", Remote("share", f"file://{tmp_path}/share"))
            async with contextlib.AsyncExitStack() as stack:
                stack.callback(machine.machine.close)
                stack.push_async_callback(machine.uploads.close)
                stack.push_async_callback(machine.at_remote.close)
                stack.push_async_callback(machine.checks.close)
                machine.configure(automatic=False)
                await machine.note(1, 2)
                await machine.recorded(lambda known: len(known.snapshots) == 2)
                await test(machine)

        asyncio.run(main())

    return run


def test_what_others_removed_is_noticed_and_taken_back_once_a_day(checked, tmp_path):
    async def test(m):
        await m.look(due=True)
        m.delete_there(time.time())
        await m.look(due=False)
        assert m.states() == [True, True]
        await m.look(due=True)
        assert m.states() == [False, True]
        m.delete_there(0.0)
        await m.look(due=True)
        assert m.states() == [True, True]
        # The next daemon knows what was asked for.
        await m.uploads.note_gone("share", ["s1"])
        await m.recorded(lambda known: "s1" in known.gone)
        await m.uploads.ask(UploadRequest("share", ["s1"]))
        await m.recorded(lambda known: not known.gone)
        await m.uploads.note_there("share", "s1")
        # A check at any other time changes nothing.
        await m.checks.check("share")
        assert m.states() == [True, True]
        # A session that cannot be read says nothing.
        (tmp_path / "share/sessions/k1").write_bytes(b"damaged")
        await m.look(due=True)
        assert m.states() == [True, True]

    checked(test)


def test_a_paused_remote_is_not_asked(checked):
    async def test(m):
        m.delete_there(time.time())
        m.configure(paused=True)
        await m.look(due=True)
        assert m.states() == [True, True]
        m.configure(paused=False)
        await m.look(due=True)
        assert m.states() == [False, True]

    checked(test)
