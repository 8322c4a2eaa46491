"""A machine that has seen nothing of a remote but its key lists it and fetches a snapshot of each session with few requests."""

from __future__ import annotations

import pytest

from jupyter_gpuckpt.daemon.remotes import remote_keys
from jupyter_gpuckpt.remote.fetch import fetch
from jupyter_gpuckpt.remote.remote_sessions import Sessions
from jupyter_gpuckpt.store.local import LocalStore
from tests.remote.installations import content_of
from tests.remote.joined import join
from tests.remote.stores import chunks
from tests.unit.test_store_local import manifest, put

SAVES = 3
#: What is promised for each session that is listed.
MAX_REQUESTS = 20


@pytest.mark.parametrize("sessions", [1, 8])
def test_a_cold_start_takes_few_requests_for_each_session(
    remote, sessions, count_requests, tmp_path
):
    a = join(tmp_path / "a", remote)
    contents = {f"s{number}": chunks(number, 3) for number in range(sessions * SAVES)}
    with LocalStore(tmp_path / "a/store") as store:
        for number, (snapshot_id, content) in enumerate(contents.items()):
            put(store, *content)
            store.publish(manifest(snapshot_id, *content, kernel_id=f"k{number % sessions}"))
            a.upload(store, snapshot_id)
    b = join(tmp_path / "b", remote, a.line)
    before = count_requests()
    opened = remote_keys.opened(b.data_dir, b.remote)
    at_remote = Sessions(opened.bucket, opened.key.seal, opened.seen)
    listed = [at_remote.get(one).listed for one in at_remote.ids()]
    assert [len(one) for one in listed] == [SAVES] * sessions
    # The key, the list, and each session.
    to_list = count_requests() - before
    assert 0 < to_list <= 2 + sessions
    with LocalStore(tmp_path / "b/store") as store:
        for snapshots in listed:
            fetch(opened.bucket, opened.key.seal, snapshots[-1], store)
            snapshot_id = snapshots[-1].snapshot_id
            assert content_of(store, snapshot_id) == contents[snapshot_id]
    # The manifest, the header and the index of its pack, and its chunks.
    to_fetch = count_requests() - before - to_list
    assert 0 < to_fetch <= 4 * sessions
    assert to_list + to_fetch <= MAX_REQUESTS * sessions
