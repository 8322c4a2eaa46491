"""A remote that was copied to another place goes on there, for machines that used it and for new ones."""

from __future__ import annotations

import secrets

import msgspec

from jupyter_gpuckpt.daemon.remotes import remote_keys
from jupyter_gpuckpt.remote import fetch
from jupyter_gpuckpt.remote.buckets import open_bucket
from jupyter_gpuckpt.remote.remote_sessions import Sessions
from jupyter_gpuckpt.store.local import LocalStore
from jupyter_gpuckpt.wire.remote_records import RemoteVerb
from tests.remote import servers
from tests.remote.installations import ask
from tests.remote.joined import join
from tests.remote.stores import chunks
from tests.remote.test_fetching import saved

FOLDERS = ("condemned", "heartbeats", "indexes", "manifests", "packs", "sessions")


def copied(old, new):
    """Copy all objects to another place, as a provider's tool does it, and return the names of those in folders."""
    source, target = open_bucket(old), open_bucket(new)
    names = {one.name for folder in FOLDERS for one in source.list(folder)}
    for name in names | {"key"}:
        assert target.create(name, source.get(name, max_bytes=1 << 30).data)
    return names


def test_a_remote_goes_on_in_another_bucket(seaweedfs, tmp_path, monkeypatch):
    for name, value in servers.s3_variables().items():
        monkeypatch.setenv(name, value)
    first, second = tmp_path / "first", tmp_path / "second"
    old = servers.s3_remote(seaweedfs, f"p{secrets.token_hex(6)}")
    new = msgspec.structs.replace(old, url=f"{old.url}-new")
    joined = join(first, old)
    content = chunks(7)
    with LocalStore(first / "store") as store:
        saved(store, "s1", *content)
        joined.upload(store, "s1", path="notes.ipynb")
        names = copied(joined.remote, new)
        packs = {one for one in names if one.startswith("packs/")}
        assert packs

        ask(RemoteVerb.REMOVE, first, old.name)
        there = join(first, new, joined.line)
        # What is there is not sent again, and what comes later is added.
        done = there.upload(store, "s1", path="notes.ipynb")
        assert done.sent.packs == 0, done
        more = chunks(8)
        saved(store, "s2", *content, *more, created=6.0)
        there.upload(store, "s2", path="notes.ipynb")

    ours = join(second, new, joined.line)
    opened = remote_keys.opened(second, ours.remote)
    [session] = map(Sessions(opened.bucket, opened.key.seal, opened.seen).get, ["k1"])
    assert [one.snapshot_id for one in session.listed] == ["s2", "s1"]
    with LocalStore(second / "store") as here:
        for one in session.listed:
            fetch.fetch(opened.bucket, opened.key.seal, one, here)
            here.verify(one.snapshot_id)
