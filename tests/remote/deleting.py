"""A user of one machine who deletes snapshots that are in a remote."""

from __future__ import annotations

import time
from datetime import timedelta

import msgspec

from jupyter_gpuckpt.daemon.snapshots import user_deletions
from jupyter_gpuckpt.daemon.snapshots.user_deletions import UserDeletions
from jupyter_gpuckpt.remote.collector import collect
from jupyter_gpuckpt.remote.remote_list import state_folder
from jupyter_gpuckpt.remote.remote_sessions import Lease, Sessions
from tests.remote.stores import chunks
from tests.remote.test_fetching import saved
from tests.remote.test_sent_changes import SMALL, Told


class User(Told):
    """A user of one machine, who deletes snapshots."""

    def __init__(self, data_dir, store, share):
        super().__init__(data_dir, store, share)
        self.state_dir = state_folder(data_dir, "share")
        self.tell()

    def add(self, number, kernel_id, **changes):
        """Make another snapshot of a kernel, and upload it."""
        name = f"s{number}"
        content = chunks(number, 2, SMALL)
        saved(self.store, name, *content, kernel_id=kernel_id, created=float(number))
        if changes:
            self.store.annotate(name, changes)
        self.joined.upload(self.store, name)

    def deletes(self, *names):
        """Delete snapshots, as the daemon does, until that cannot be undone any more."""
        for name in names:
            [info] = [one for one in self.store.snapshots() if one.snapshot_id == name]
            identity = self.store.stubs.identity()
            user_deletions.note_in_all(self.data_dir, info, time.time(), identity)
            self.store.mark_deleted(name, 0.0)
            user_deletions.finish_in_all(self.data_dir, [name], identity)

    def waiting(self):
        """Return the deletions that the remote has not carried out, with the reasons."""
        found = UserDeletions(self.state_dir).all()
        return {name: one.reason for name, one in found.items()}

    def after_a_day(self):
        """Let a day pass since the remote kept what was deleted."""
        file = UserDeletions(self.state_dir)
        file.note({k: msgspec.structs.replace(v, tried_at=1.0) for k, v in file.all().items()})

    @property
    def sessions(self):
        """Return the remote sessions."""
        opened = self.opened
        return Sessions(opened.bucket, opened.key.seal, opened.seen)

    def listed(self, session="k1"):
        """Return what the remote lists in a session."""
        return sorted(one.snapshot_id for one in self.sessions.get(session).listed)

    def collects(self, min_age=timedelta(0)):
        """Run the collector."""
        opened = self.opened
        return collect(opened.bucket, opened.key.seal, opened.seen, min_age=min_age)

    def is_pinned_there(self, *names, session="k1", pinned=True):
        """Let another machine pin snapshots in the remote, or end its pins."""

        def pin(one):
            if one.snapshot_id not in names:
                return one
            return msgspec.structs.replace(
                one, about=msgspec.structs.replace(one.about, pinned=pinned)
            )

        self.sessions.change(
            session,
            lambda one: msgspec.structs.replace(one, snapshots=list(map(pin, one.snapshots))),
        )

    def is_relied_on_there(self, *names, session="k1"):
        """Let another machine rely on snapshots in the remote."""

        def rely(one):
            by = {"two": "host of two"} if one.snapshot_id in names else one.relied_on_by
            return msgspec.structs.replace(one, relied_on_by=by)

        self.sessions.change(
            session,
            lambda one: msgspec.structs.replace(one, snapshots=list(map(rely, one.snapshots))),
        )

    def is_taken_by(self, daemon_id, session="k1"):
        """Let another machine get the lease of a session."""

        def take(session):
            return msgspec.structs.replace(
                session, lease=Lease(daemon_id, "b"), term=session.term + 1
            )

        self.sessions.change(session, take)
