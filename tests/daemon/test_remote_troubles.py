"""What goes wrong with a remote is said in words, passes when its cause does, and is not taken for something else."""

from __future__ import annotations

import json
import secrets

import pytest

from jupyter_gpuckpt.cli import app
from jupyter_gpuckpt.remote.remote_list import Remotes
from jupyter_gpuckpt.wire import calls
from jupyter_gpuckpt.wire.remote_records import RemoteVerb
from jupyter_gpuckpt.wire.snapshot_records import UploadState
from tests.daemon.conftest import LONG
from tests.remote import interfering, servers, shared_servers
from tests.remote.installations import ask, some_chunks
from tests.remote.interfering import Refusal

OLD_KEY = "an-old-access-key"


@pytest.fixture
def refusing():
    """Return the list of functions that may answer a request in place of the server."""
    return []


@pytest.fixture
def there(pytestconfig, refusing):
    """Yield a remote behind a server that refuses what `refusing` says."""

    def refuse(asked):
        return next((found for one in refusing if (found := one(asked))), None)

    with interfering.before(shared_servers.seaweedfs(pytestconfig), refuse) as url:
        yield servers.s3_remote(url, f"p{secrets.token_hex(6)}")


def test_credentials_that_expired_are_said_to_be_and_read_again(
    add, snapshots, monkeypatch, short_dir, settings, there, refusing, request, eventually
):
    def expired(asked):
        is_old = f"Credential={OLD_KEY}/" in asked.headers.get("authorization", "")
        return Refusal(400, "ExpiredToken") if is_old else None

    refusing.append(expired)
    path = short_dir / "credentials"
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(path))
    write_credentials(path, servers.ACCESS_KEY)
    chunks = some_chunks(31, 1)
    snapshots(one=chunks)
    add(url=there.url, settings=there.settings)
    write_credentials(path, OLD_KEY)
    client, state_of = (request.getfixturevalue(name) for name in ("client", "state_of"))
    eventually(lambda: state_of(client, "one").error, LONG)
    found = state_of(client, "one")
    assert (found.state, found.error.code) == (UploadState.WAITING, "credentials_refused")
    assert found.error.message == "The credentials for remote offsite have expired."
    write_credentials(path, servers.ACCESS_KEY)
    request.getfixturevalue("uploaded")(client, "one")
    assert request.getfixturevalue("reader")().fetch_all() == {"one": chunks}


def write_credentials(path, access_key):
    lines = ["[default]", f"aws_access_key_id = {access_key}"]
    lines += [f"aws_secret_access_key = {servers.SECRET_KEY}", ""]
    path.write_text("\n".join(lines))


@pytest.mark.usefixtures("credentials")
def test_a_snapshot_that_is_deleted_in_the_middle_of_its_upload_leaves_nothing(
    add, snapshots, client, there, refusing, uploaded, reader, settings, eventually
):
    snapshots(stays=some_chunks(32, 1), gone=some_chunks(33, 1))
    # The manifest is written, and nothing can list it.
    refusing.append(
        lambda asked: (
            Refusal(503, "SlowDown")
            if asked.method == "PUT" and "/sessions/of-gone" in asked.path
            else None
        )
    )
    add(url=there.url, settings=there.settings)
    bucket = reader().bucket
    eventually(lambda: named(bucket, "gone"), LONG)
    client.send(calls.delete_snapshot("gone"))
    uploaded(client, "stays")
    eventually(lambda: not named(bucket, "gone"), LONG)
    eventually(lambda: not list((settings.data / "remotes/offsite/uploads").iterdir()), LONG)
    assert len(named(bucket, "stays")) == 1
    # And it can come back.
    refusing.clear()
    client.send(calls.undelete("gone"))
    uploaded(client, "gone")
    assert set(reader().fetch_all()) == {"stays", "gone"}


def named(bucket, snapshot_id):
    """Return the manifests of a snapshot in a remote."""
    found = [one.name for one in bucket.list("manifests")]
    return [name for name in found if name.startswith(f"manifests/{snapshot_id}.")]


def test_a_key_or_an_epoch_that_cannot_be_read_is_no_fault_of_snapshots(
    add, snapshots, client, uploaded, state_of, reader, short_dir, settings, eventually
):
    snapshots(one=some_chunks(34, 1))
    add(paused=True)
    key, epoch = (short_dir / "offsite" / name for name in ("key", "epoch"))
    content = key.read_bytes()
    key.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    ask(RemoteVerb.RESUME, settings.data, "offsite")
    eventually(lambda: state_of(client, "one").error, LONG)
    found = state_of(client, "one")
    assert (found.state, found.error.code) == (UploadState.WAITING, "store_unavailable")
    assert "key in the remote" in found.error.message
    epoch.write_bytes(b"nothing that makes sense" * 10)
    key.write_bytes(content)

    def view():
        [found] = client.send(calls.uploads())
        return found

    eventually(lambda: "epoch" in view().trouble.message, LONG)
    assert (view().failed, view().waiting) == ([], 1)
    epoch.unlink()
    uploaded(client, "one")


def test_a_remote_that_refuses_is_not_said_to_be_removed(add, snapshots, client, settings, capsys):
    snapshots(one=some_chunks(35, 1))
    remote = add(automatic=False)
    path = settings.data / "keys/offsite.key"
    path.chmod(0o644)
    assert app.main(["remote", "upload", "offsite", "one"]) == 2
    assert f"Others can read the key file {path}" in capsys.readouterr().err
    path.chmod(0o600)
    # A change of the remote ends the refusal.
    Remotes(settings.data).change("offsite", lambda one: remote)
    assert app.main(["remote", "test", "offsite"]) == 0
    assert app.main(["remote", "upload", "offsite", "one"]) == 0


def test_remotes_that_cannot_be_read_end_no_daemon(
    add, snapshots, client, uploaded, settings, eventually
):
    snapshots(one=some_chunks(36, 1))
    pid = client.send(calls.handshake()).pid
    settings.data.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = settings.data / "remotes.json"
    for endpoint in ("http://[x", "http://host:99999999"):
        remote = {
            "name": "offsite",
            "url": "s3://bucket/prefix",
            "settings": {"endpoint": endpoint},
        }
        path.write_text(json.dumps({"version": 1, "remotes": [remote]}))
        eventually(lambda: settings.log_file.read_text().count("used as they were") >= 1, LONG)
        path.unlink()
    add()
    uploaded(client, "one")
    assert client.send(calls.handshake()).pid == pid
