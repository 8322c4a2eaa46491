"""Remotes are kept in a file that holds no secret and is read again whenever somebody asks."""

from __future__ import annotations

import stat
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import msgspec
import pytest

from jupyter_gpuckpt.daemon.remotes import remote_keys
from jupyter_gpuckpt.errors import ConfigurationError, FormatTooNew, RemoteNotFound
from jupyter_gpuckpt.remote import capabilities
from jupyter_gpuckpt.remote.capabilities import require_usable, verdict
from jupyter_gpuckpt.remote.credentials import AwsFile
from jupyter_gpuckpt.remote.remote_list import Remotes
from jupyter_gpuckpt.wire.remote_records import Capabilities, Remote, RemoteVerb, secrets_in
from tests.remote.installations import add_remote, ask

GOOD = Capabilities(True, True, True, True, True, True)


def test_remotes_are_kept_in_their_order(tmp_path):
    remotes = Remotes(tmp_path / "data")
    assert remotes.all() == []
    first = Remote("first", "s3://bucket/prefix", {"region": "eu-central-1"}, upload_rate=1000)
    second = Remote("second", "file:///mnt/share/snapshots")
    remotes.add(first)
    remotes.add(second)
    # As a process that runs sees it.
    assert Remotes(tmp_path / "data").all() == [first, second]
    tried = msgspec.structs.replace(first, capabilities=GOOD)
    assert remotes.change("first", lambda one: tried) == tried
    assert remotes.get("first") == tried
    remotes.remove("first")
    assert remotes.all() == [second]
    mode = stat.S_IMODE((tmp_path / "data/remotes.json").stat().st_mode)
    assert mode == 0o600


def test_a_name_is_taken_once(tmp_path):
    remotes = Remotes(tmp_path)
    remotes.add(Remote("one", "file:///a"))
    with pytest.raises(ConfigurationError, match="already"):
        remotes.add(Remote("one", "file:///b"))
    with pytest.raises(ConfigurationError, match="There is no remote 'two'"):
        remotes.get("two")
    with pytest.raises(ConfigurationError, match="There is no remote 'two'"):
        remotes.remove("two")


def test_a_remote_that_was_removed_is_not_changed(tmp_path):
    with pytest.raises(RemoteNotFound):
        Remotes(tmp_path).change("gone", lambda one: one)


@pytest.fixture
def trying(tmp_path, monkeypatch):
    """Return a function that sets a change of the remote to be made while it is tested."""
    add_remote(tmp_path, "share", f"file://{tmp_path}/share")
    try_out = capabilities.try_out

    def meanwhile(does):
        def tried(bucket):
            # Whoever tries it out holds up nobody.
            does(Remotes(tmp_path))
            return try_out(bucket)

        monkeypatch.setattr(capabilities, "try_out", tried)

    return meanwhile


def test_what_is_changed_while_a_remote_is_tried_out_stays(tmp_path, trying):
    before = Remotes(tmp_path).get("share")
    trying(lambda remotes: ask(RemoteVerb.PAUSE, tmp_path, "share"))
    [view] = ask(RemoteVerb.TEST, tmp_path, "share").remotes
    assert view.remote == Remotes(tmp_path).get("share")
    assert view.remote.paused
    assert view.remote.capabilities.tried_at > before.capabilities.tried_at


def test_what_one_endpoint_can_do_is_not_taken_for_what_another_can(tmp_path, trying):
    elsewhere = Remote("share", f"file://{tmp_path}/elsewhere")
    trying(lambda remotes: remotes.change("share", lambda one: elsewhere))
    with pytest.raises(RemoteNotFound, match="replaced meanwhile"):
        ask(RemoteVerb.TEST, tmp_path, "share")
    assert Remotes(tmp_path).get("share") == elsewhere


def test_a_remote_that_is_removed_while_it_is_tried_out_stays_removed(tmp_path, trying):
    trying(lambda remotes: remotes.remove("share"))
    with pytest.raises(RemoteNotFound):
        ask(RemoteVerb.TEST, tmp_path, "share")
    assert Remotes(tmp_path).all() == []


@pytest.mark.parametrize(
    "changes",
    [
        {"url": "s3://bucket/other"},
        {"settings": {"endpoint": "https://other.example"}},
        {"erased": {"kernel": 1.0}},
    ],
)
def test_nothing_is_put_on_record_for_a_remote_that_is_another_one_now(tmp_path, changes):
    before = Remote("offsite", "s3://bucket/prefix", {"endpoint": "https://one.example"})
    remotes = Remotes(tmp_path)
    remotes.add(before)
    remotes.change("offsite", lambda one: msgspec.structs.replace(one, paused=True))
    with remote_keys.uploading(tmp_path, before):
        pass
    remotes.change("offsite", lambda one: msgspec.structs.replace(one, **changes))
    with (
        pytest.raises(RemoteNotFound, match="replaced by another one"),
        remote_keys.uploading(tmp_path, before),
    ):
        pass


def test_many_that_add_at_once_lose_nothing(tmp_path):
    names = [f"r{number}" for number in range(20)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda one: Remotes(tmp_path).add(Remote(one, "file:///a")), names))
    assert sorted(one.name for one in Remotes(tmp_path).all()) == sorted(names)


@pytest.mark.parametrize(
    "url",
    [
        "s3://KEY:hunter2@bucket/prefix",
        "s3://bucket/prefix?token=hunter2",
        "s3:///prefix",
        "s3://bucket:99/prefix",
        "s3://bucket/../other",
        "http://hunter2.example.com/bucket",
        "file://host/share",
        "file:///",
        "snapshots",
        "",
        "s3://[hunter2",
    ],
)
def test_a_url_that_cannot_work_or_holds_a_secret_is_refused_without_repeating_it(url):
    with pytest.raises(ConfigurationError) as caught:
        Remote("one", url).check()
    assert "hunter2" not in caught.value.message.replace("hunter2.example.com", "")


@pytest.mark.parametrize(
    ("url", "settings"),
    [
        ("s3://bucket", {"secret_access_key": "x"}),
        ("az://container", {"account_key": "x"}),
        ("gs://bucket", {"endpoint": "https://example.com"}),
        ("s3://bucket", {"endpoint": "http://storage.example.com"}),
        ("s3://bucket", {"endpoint": "https://KEY:x@storage.example.com"}),
        ("s3://bucket", {"endpoint": "ftp://storage.example.com"}),
        ("s3://bucket", {"endpoint": "http://[storage.example.com"}),
        ("s3://bucket", {"endpoint": "https://storage.example.com:99999999"}),
    ],
)
def test_settings_that_are_secret_or_unsafe_are_refused(url, settings):
    with pytest.raises(ConfigurationError):
        Remote("one", url, settings).check()


def test_an_endpoint_without_encryption_is_taken_at_home_or_by_the_users_word():
    Remote("one", "s3://bucket", {"endpoint": "http://127.0.0.1:8333"}).check()
    settings = {"endpoint": "http://storage.example.com", "allow_http": "true"}
    Remote("one", "s3://bucket", settings).check()


@pytest.mark.parametrize(
    "text", [b"", b"{", b"\xff\xff", b'{"version": 1, "remotes": 3}', b"[" * 100_000]
)
def test_a_damaged_file_is_an_error_that_names_it(tmp_path, text):
    (tmp_path / "remotes.json").write_bytes(text)
    with pytest.raises(ConfigurationError, match=r"remotes\.json is damaged"):
        Remotes(tmp_path).all()


def test_a_file_of_a_newer_version_is_left_alone(tmp_path):
    (tmp_path / "remotes.json").write_text('{"version": 2, "remotes": {"new": "shape"}}')
    with pytest.raises(FormatTooNew):
        Remotes(tmp_path).add(Remote("one", "file:///a"))
    assert "new" in (tmp_path / "remotes.json").read_text()


def test_credentials_come_from_the_file_and_again_after_they_changed(tmp_path):
    path = tmp_path / "credentials"
    path.write_text("[default]\naws_access_key_id = A\naws_secret_access_key = S%1\n")
    environ = {"AWS_SHARED_CREDENTIALS_FILE": str(path)}
    found = AwsFile.find("", environ)
    first = found()
    assert (first["access_key_id"], first["secret_access_key"]) == ("A", "S%1")
    assert first["token"] is None
    assert first["expires_at"] > datetime.now(UTC)
    path.write_text(
        "[default]\naws_access_key_id = B\naws_secret_access_key = T\naws_session_token = U\n"
    )
    second = found()
    assert (second["access_key_id"], second["token"]) == ("B", "U")
    path.unlink()
    with pytest.raises(ConfigurationError, match="no credentials"):
        found()


def test_keys_in_the_environment_come_before_the_file_but_not_before_a_profile(tmp_path):
    path = tmp_path / "credentials"
    path.write_text("[work]\naws_access_key_id = A\naws_secret_access_key = S\n")
    environ = {"AWS_SHARED_CREDENTIALS_FILE": str(path)}
    assert AwsFile.find("", environ) is None
    assert AwsFile.find("", environ | {"AWS_PROFILE": "work"}) is not None
    environ["AWS_ACCESS_KEY_ID"] = "E"
    assert AwsFile.find("", environ | {"AWS_PROFILE": "work"}) is None
    assert AwsFile.find("work", environ)()["access_key_id"] == "A"
    with pytest.raises(ConfigurationError, match="profile play"):
        AwsFile.find("play", environ)


def test_secrets_that_kernels_would_inherit_are_named():
    remote = Remote("one", "s3://bucket")
    assert secrets_in(remote, {"AWS_SECRET_ACCESS_KEY": "x"}) == ["AWS_SECRET_ACCESS_KEY"]
    assert secrets_in(remote, {"AWS_SECRET_ACCESS_KEY": "", "AZURE_STORAGE_KEY": "x"}) == []
    assert secrets_in(Remote("one", "file:///a"), {"AWS_SECRET_ACCESS_KEY": "x"}) == []


@pytest.mark.parametrize("lacking", ["create_only", "ranges", "lists", "tells_missing"])
def test_what_nothing_can_replace_is_a_reason_to_refuse(lacking):
    remote = Remote("one", "s3://bucket", capabilities=GOOD)
    require_usable(remote)
    with pytest.raises(ConfigurationError, match="cannot be used"):
        require_usable(
            msgspec.structs.replace(
                remote, capabilities=msgspec.structs.replace(GOOD, **{lacking: False})
            )
        )
    with pytest.raises(ConfigurationError, match="never tested"):
        require_usable(Remote("one", "s3://bucket"))


@pytest.mark.parametrize(
    "found",
    [
        {"compare_and_swap": False},
        {"deletes": False},
        {"versioned": True},
        {"clock_ahead_seconds": -400.0},
    ],
)
def test_what_is_given_up_is_said(found):
    assert verdict(GOOD).warnings == []
    words = verdict(msgspec.structs.replace(GOOD, **found))
    assert len(words.warnings) == 1
    assert words.refusals == []
