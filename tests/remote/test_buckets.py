"""Every kind of bucket keeps the contract that the remote store rests on, or is found out when it is configured."""

from __future__ import annotations

import os
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest
from obstore.exceptions import AlreadyExistsError, GenericError, PermissionDeniedError
from obstore.store import MemoryStore

from jupyter_gpuckpt.errors import (
    AccessDenied,
    ConfigurationError,
    CredentialsRefused,
    RemoteObjectInvalid,
    RemoteObjectMissing,
    StoreUnavailable,
)
from jupyter_gpuckpt.linux.shared_folders import file_system_of, locks_reach_all
from jupyter_gpuckpt.remote import buckets
from jupyter_gpuckpt.remote.buckets import HEADER_BYTES, Bucket, open_bucket
from jupyter_gpuckpt.remote.capabilities import require_usable, try_out, verdict
from jupyter_gpuckpt.remote.retries import Retries
from jupyter_gpuckpt.wire.remote_records import Remote
from tests.ports import free_port
from tests.remote import servers
from tests.remote.conftest import memory_bucket, quick
from tests.remote.interfering import slow_reader


def content(length: int = 1000) -> bytes:
    return os.urandom(length)


def test_what_was_written_is_read_as_it_was(bucket):
    data = content(100_000)
    assert bucket.create("packs/one", data)
    assert bucket.get("packs/one").data == data
    assert bucket.get_range("packs/one", 10, 20) == data[10:20]
    assert bucket.get_range("packs/one", 99_990, 100_000) == data[-10:]
    assert bucket.get_range("packs/one", 99_990, 200_000) == data[-10:]
    with pytest.raises(RemoteObjectInvalid):
        bucket.get_range("packs/one", 100_010, 100_020)
    found = bucket.head("packs/one")
    assert (found.name, found.size) == ("packs/one", len(data))


def test_what_is_missing_is_said_to_be_missing(bucket):
    with pytest.raises(RemoteObjectMissing):
        bucket.get("packs/none")
    with pytest.raises(RemoteObjectMissing):
        bucket.get_range("packs/none", 0, 10)
    assert bucket.head("packs/none") is None
    bucket.delete(["packs/none"])
    assert bucket.list("packs") == []


def test_an_object_is_created_once(bucket):
    first = content()
    assert bucket.create("one", first)
    assert not bucket.create("one", content())
    assert not bucket.create("one", first[:HEADER_BYTES] + content())
    assert bucket.get("one").data == first


def test_a_writer_whose_answer_was_lost_finds_that_it_won(bucket):
    data = content()
    bucket.create("one", data)
    assert bucket.create("one", data)
    old = bucket.get("one").version
    newer = content()
    assert bucket.swap("one", newer, old)
    assert bucket.swap("one", newer, old)


def test_of_many_creators_one_wins(bucket):
    contents = [content() for _ in range(8)]
    with ThreadPoolExecutor(8) as pool:
        won = list(pool.map(lambda one: bucket.create("one", one), contents))
    assert sum(won) == 1
    assert bucket.get("one").data == contents[won.index(True)]


def test_of_many_swappers_one_wins(bucket):
    bucket.create("one", content())
    for _ in range(5):
        old = bucket.get("one").version
        contents = [content() for _ in range(4)]
        with ThreadPoolExecutor(4) as pool:
            won = list(pool.map(lambda one, old=old: bucket.swap("one", one, old), contents))
        assert sum(won) == 1
        assert bucket.get("one").data == contents[won.index(True)]


def test_an_object_that_is_gone_is_not_swapped(bucket):
    bucket.create("one", content())
    old = bucket.get("one").version
    bucket.delete(["one"])
    assert not bucket.swap("one", content(), old)
    assert bucket.head("one") is None


def test_lists_name_what_is_in_a_folder(bucket):
    for name in ("a/1", "a/2", "b/1", "ab"):
        bucket.create(name, content())
    assert sorted(found.name for found in bucket.list("a")) == ["a/1", "a/2"]
    bucket.delete(["a/1", "a/2"])
    assert bucket.list("a") == []


def test_what_is_longer_than_it_can_be_is_not_read(bucket):
    bucket.create("one", content(10_000))
    with pytest.raises(RemoteObjectInvalid, match="is longer than"):
        bucket.get("one", max_bytes=9_999)


def test_an_object_without_a_header_cannot_be_written():
    with pytest.raises(ValueError, match="no header"):
        memory_bucket().create("one", b"short")


def test_a_good_endpoint_is_found_to_be_good(remote):
    bucket = open_bucket(remote, retries=quick())
    found = try_out(bucket)
    assert (found.create_only, found.compare_and_swap) == (True, True)
    assert (found.ranges, found.lists, found.tells_missing, found.deletes) == (True,) * 4
    assert abs(found.clock_ahead_seconds) < 60
    require_usable(msgspec.structs.replace(remote, capabilities=found))
    assert verdict(found).warnings == []
    assert bucket.list("trial") == []


def test_an_endpoint_that_overwrites_is_found_out_and_refused(rclone, monkeypatch):
    for name, value in servers.s3_variables().items():
        monkeypatch.setenv(name, value)
    found = try_out(open_bucket(servers.s3_remote(rclone, "prefix"), retries=quick()))
    assert not found.create_only
    assert not found.compare_and_swap
    with pytest.raises(ConfigurationError, match="condition not to overwrite"):
        require_usable(Remote("bad", "s3://bad", capabilities=found))


def test_a_wrong_key_is_denied_and_nothing_of_it_is_said(seaweedfs, monkeypatch):
    for name, value in servers.s3_variables(secret_key="wrong-secret-key").items():
        monkeypatch.setenv(name, value)
    bucket = open_bucket(servers.s3_remote(seaweedfs, "prefix"), retries=quick())
    for ask in (
        lambda: bucket.get("one"),
        lambda: bucket.create("one", content()),
        lambda: bucket.list("one"),
        lambda: bucket.delete(["one"]),
        lambda: try_out(bucket),
    ):
        with pytest.raises(AccessDenied) as caught:
            ask()
        said = f"{caught.value.message} {caught.value.hint} {caught.value.details}"
        assert servers.ACCESS_KEY not in said
        assert "wrong-secret-key" not in said


def test_a_container_that_is_not_there_is_named_as_the_cause(azurite, monkeypatch):
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", servers.AZURE_KEY)
    remote = servers.azure_remote(azurite, "prefix")
    remote = msgspec.structs.replace(remote, url="az://nowhere/prefix")
    with pytest.raises(ConfigurationError, match="does not exist"):
        try_out(open_bucket(remote, retries=quick()))


def test_a_server_that_is_gone_is_out_of_reach_after_some_attempts(monkeypatch):
    for name, value in servers.s3_variables().items():
        monkeypatch.setenv(name, value)
    bucket = open_bucket(
        servers.s3_remote(f"http://127.0.0.1:{free_port()}", "prefix"), retries=quick()
    )
    for ask in (
        lambda: bucket.get("one"),
        lambda: bucket.create("one", content()),
        lambda: bucket.swap("one", content(), {"e_tag": "x"}),
    ):
        with pytest.raises(StoreUnavailable):
            ask()


class Unreliable:
    """A store in memory that does what it is told and then loses four of ten answers."""

    def __init__(self) -> None:
        self.below, self.chance = MemoryStore(), random.Random(1)

    def __getattr__(self, name):
        ask = getattr(self.below, name)

        def answer(*args, **options):
            done = ask(*args, **options)
            if self.chance.random() < 0.4:
                raise GenericError("operation timed out")
            return done

        return answer


#: As Azure, and as S3 says it of one of several objects that were to be deleted at once.
REFUSALS = [
    AlreadyExistsError("status code: 409 BlobImmutableDueToPolicy"),
    GenericError("DeleteObjects request failed for key x: Object is WORM (code: AccessDenied)"),
    PermissionDeniedError("status 403 <Error><Code>AccessDenied</Code></Error>"),
    GenericError("status 400 <Error><Code>ObjectLocked</Code></Error>"),
]


@pytest.mark.parametrize("refusal", REFUSALS)
def test_a_deletion_that_is_refused_is_said_to_be_and_the_others_are_done(refusal, caplog):
    class Immutable(MemoryStore):
        def delete(self, path):
            if "locked" in path:
                raise refusal
            super().delete(path)

    bucket = Bucket(Immutable(), "immutable", retries=quick())
    for name in ("locked/1", "free/1", "locked/2"):
        bucket.create(name, content())
    assert bucket.delete(["locked/1", "free/1", "locked/2"]) == ["locked/1", "locked/2"]
    assert bucket.head("free/1") is None
    assert "refused to delete 2 objects (" in caplog.text


def test_an_endpoint_that_deletes_nothing_is_found_out():
    class Immutable(MemoryStore):
        def delete(self, path):
            raise REFUSALS[0]

    assert not try_out(Bucket(Immutable(), "immutable", retries=quick())).deletes


EXPIRED = "status 400 Bad Request: <Error><Code>ExpiredToken</Code></Error>"


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (EXPIRED, "have expired"),
        ("status 401 <Error><Code>ExpiredAuthenticationToken</Code></Error>", "have expired"),
        ("status 403 <Error><Code>InvalidAccessKeyId</Code></Error>", "rejects these"),
        ("status 403 <Error><Code>SignatureDoesNotMatch</Code></Error>", "rejects these"),
    ],
)
def test_credentials_that_expired_or_were_rotated_are_said_to_be(said, words):
    class Refusing(MemoryStore):
        def get(self, path, *, options=None):
            raise GenericError(said)

        delete = get

    bucket = Bucket(Refusing(), "refusing", retries=quick())
    with pytest.raises(CredentialsRefused, match=words) as caught:
        bucket.get("one")
    assert "read again" in caught.value.hint
    with pytest.raises(CredentialsRefused):
        bucket.delete(["one"])


def test_an_answer_without_words_may_mean_that_credentials_expired():
    class Refusing(MemoryStore):
        def head(self, path):
            raise GenericError("Server returned non-2xx status code: 400 Bad Request: ")

    with pytest.raises(CredentialsRefused) as caught:
        Bucket(Refusing(), "refusing", retries=quick()).head("one")
    assert "may have expired" in caught.value.hint


def test_long_content_may_take_longer_to_send_than_an_answer_may_take(monkeypatch):
    for name, value in servers.s3_variables().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(buckets, "SILENT_SECONDS", 1)
    with slow_reader(seconds=3.0) as url:
        bucket = open_bucket(servers.s3_remote(url, "prefix"), retries=Retries(attempts=1))
        assert bucket.create("packs/one", content(16 << 20))
        with pytest.raises(StoreUnavailable, match="does not respond"):
            bucket.get("packs/one")


def test_lost_answers_cost_no_write_and_bring_none_twice():
    store = Unreliable()
    bucket = Bucket(store, "unreliable", retries=Retries(attempts=50, first_seconds=0.0))
    data = content()
    assert bucket.create("one", data)
    for _ in range(10):
        data = content()
        assert bucket.swap("one", data, bucket.get("one").version)
        assert bucket.get("one").data == data
        assert not bucket.create("one", content())


def test_a_folder_remote_is_a_folder(tmp_path):
    bucket = open_bucket(Remote("one", f"file://{tmp_path}/with%20space"), retries=quick())
    bucket.create("packs/one", content())
    assert (tmp_path / "with space/packs/one").stat().st_size == 1000


def test_a_folder_whose_locks_reach_not_everybody_is_for_one_machine(tmp_path, monkeypatch):
    monkeypatch.setattr(buckets, "locks_reach_all", lambda folder: False)
    remote = Remote("one", f"file://{tmp_path}/share")
    found = try_out(open_bucket(remote, retries=quick()))
    assert (found.create_only, found.compare_and_swap) == (True, False)
    assert any("only this machine may write" in one for one in verdict(found).warnings)


def test_a_file_that_is_deleted_while_it_is_written_is_written_again(tmp_path, monkeypatch):
    bucket = open_bucket(Remote("one", f"file://{tmp_path}"), retries=quick())
    to_disk, deleted = buckets._bring_to_disk, []

    def deleting(root, name):
        if not deleted:
            (root / name).unlink()
            deleted.append(name)
        to_disk(root, name)

    monkeypatch.setattr(buckets, "_bring_to_disk", deleting)
    written = content()
    assert bucket.create("packs/a", written)
    assert (deleted, bucket.get("packs/a").data) == (["packs/a"], written)


def test_the_file_system_of_a_folder_is_known(tmp_path):
    mounts = tmp_path / "mountinfo"
    mounts.write_text(
        "27 1 254:0 / / rw,relatime - ext4 /dev/vda rw\n"
        "30 27 0:40 / /mnt/my\\040share rw shared:1 - nfs4 host:/share rw,local_lock=none\n"
        "31 27 0:41 / /mnt/fast rw - fuse.sshfs host: rw\n"
        "32 27 0:42 / /mnt/fast rw - xfs /dev/vdb rw\n"
    )
    assert file_system_of(Path("/mnt/my share/folder"), str(mounts)) == "nfs4"
    assert file_system_of(Path("/mnt/fast"), str(mounts)) == "xfs"
    assert file_system_of(Path("/mnt/faster"), str(mounts)) == "ext4"
    assert not locks_reach_all(Path("/mnt/my share"), str(mounts))
    assert locks_reach_all(Path("/home"), str(mounts))
    assert not locks_reach_all(tmp_path, str(tmp_path / "none"))


def test_written_bytes_are_counted(bucket):
    assert bucket.create("a", os.urandom(1000))
    assert not bucket.create("a", os.urandom(500))
    bucket.get("a")
    assert bucket.sent_bytes == 1500
