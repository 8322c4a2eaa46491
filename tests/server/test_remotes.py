"""What a page sees of remotes, and a snapshot that it brings here from one."""

import json
import platform
import secrets
from pathlib import Path

import msgspec
import pytest

from jupyter_gpuckpt.store.local import LocalStore
from jupyter_gpuckpt.wire.manifest_records import Sizes
from jupyter_gpuckpt.wire.remote_records import Remote, RemoteVerb
from tests.manifests import manifest
from tests.remote.installations import ask
from tests.remote.joined import join
from tests.remote.stores import chunks
from tests.unit.test_store_local import put


@pytest.fixture
def server(clean_server):
    return clean_server


@pytest.fixture
def snapshot_id():
    """Return an id of the test's own, for content of its own: what another test has deleted could be undeleted, so it is still here."""
    return f"s{secrets.token_hex(4)}"


@pytest.fixture
def share(server, tmp_path, snapshot_id):
    """Yield a remote of the server's that holds a snapshot of another machine, whose working directory is not here."""
    data_dir = Path(server.env["JUPYTER_GPUCKPT_DATA_DIR"])
    joined = join(data_dir, Remote("share", f"file://{tmp_path}/share"))
    content = chunks(int(snapshot_id[1:], 16))
    made = manifest(snapshot_id, *content, kernel_id="k1")
    with LocalStore(tmp_path / "store") as store:
        put(store, *content)
        changed = {
            "info": msgspec.structs.replace(made.info, sizes=Sizes(400_000, 300_000)),
            "host": msgspec.structs.replace(made.host, machine=platform.machine()),
            "launch": msgspec.structs.replace(made.launch, cwd=f"{tmp_path}/gone"),
        }
        store.publish(msgspec.structs.replace(made, **changed))
        joined.upload(store, snapshot_id, path="notes.ipynb", host_name="far away")
    yield joined
    ask(RemoteVerb.REMOVE, data_dir, "share")


def test_a_snapshot_is_fetched_by_a_page(server, share, tmp_path, snapshot_id):
    [remote] = server.get("api/gpuckpt/remotes")["remotes"]
    assert set(remote) == {"name", "url", "tried_at", "refusals", "warnings"}
    assert (remote["name"], remote["refusals"]) == ("share", [])

    [session] = server.get("api/gpuckpt/remotes/share/sessions")["sessions"]
    assert (session["path"], session["host_name"]) == ("notes.ipynb", "far away")
    [snapshot] = session["snapshots"]
    assert (snapshot["snapshot_id"], snapshot["here"]) == (snapshot_id, False)

    path = f"remotes/share/snapshots/{snapshot_id}"
    estimate = server.get(f"api/gpuckpt/{path}?session_id={session['session_id']}")
    assert (estimate["move_bytes"], estimate["here_bytes"]) == (300_000, 0)
    assert estimate["obstacles"] == [
        f"There is no folder {tmp_path}/gone, in which the kernel was started."
    ]
    status, body = server.refused("POST", f"{path}/fetch", json={})
    assert (status, body["code"]) == (409, "host_incompatible")
    assert server.get("api/gpuckpt/snapshots")["snapshots"] == []

    begun = server.request("POST", f"api/gpuckpt/{path}/fetch", json={"force": True}).json()
    assert (begun["kind"], begun["kernel_id"]) == ("fetch", "k1")
    done = server.finish(begun)
    assert done["state"] == "succeeded", done
    [here] = server.get("api/gpuckpt/snapshots")["snapshots"]
    assert (here["snapshot_id"], here["kernel_id"]) == (snapshot_id, "k1")
    status, body = server.refused("POST", f"{path}/fetch", json={"force": True})
    assert (status, body["code"]) == (409, "snapshot_exists")
    status, body = server.refused("GET", "remotes/share/snapshots/s2")
    assert (status, body["code"]) == (404, "snapshot_not_found")


def test_a_page_cancels_a_fetch_that_waits_for_its_remote(server, share, tmp_path, snapshot_id):
    for pack in (tmp_path / "share/packs").iterdir():
        pack.unlink()
        pack.symlink_to(pack.name)  # cannot be read, for a reason that may pass
    path = f"api/gpuckpt/remotes/share/snapshots/{snapshot_id}/fetch"
    begun = server.request("POST", path, json={"force": True}).json()
    server.request("POST", f"api/gpuckpt/operations/{begun['operation_id']}/cancel")
    assert server.finish(begun)["state"] == "cancelled"
    assert server.get("api/gpuckpt/snapshots")["snapshots"] == []


@pytest.fixture
def remote_list(server):
    """Return a function that lists the server's remotes; they are forgotten after the test, with the machine's key files."""
    data_dir = Path(server.env["JUPYTER_GPUCKPT_DATA_DIR"])

    def names():
        return [one["name"] for one in server.get("api/gpuckpt/remotes")["remotes"]]

    yield names
    for name in names():
        ask(RemoteVerb.REMOVE, data_dir, name)
        (data_dir / f"keys/{name}.key").unlink()


def test_a_page_tests_a_place_and_makes_a_store_there(server, remote_list, tmp_path):
    wanted = {"name": "team", "url": f"file://{tmp_path}/team"}
    tried = server.request("POST", "api/gpuckpt/remotes/test", json=wanted).json()
    assert tried == {"url": wanted["url"], "refusals": [], "warnings": [], "has_store": False}
    assert remote_list() == []
    added = server.request("POST", "api/gpuckpt/remotes", json=wanted).json()
    assert (added["name"], added["warnings"]) == ("team", [])
    assert remote_list() == ["team"]
    line = added["line"]
    assert line.startswith(wanted["url"] + " ")

    # What is there is never made anew, and the hint names nothing that only a terminal has.
    again = {**wanted, "name": "again"}
    tried = server.request("POST", "api/gpuckpt/remotes/test", json=again).json()
    assert tried["has_store"]
    key = (tmp_path / "team/key").read_bytes()
    status, body = server.refused("POST", "remotes", json=again)
    assert (status, body["code"]) == (400, "configuration")
    assert "nothing was changed" in body["message"]
    assert "jupyter gpuckpt" not in json.dumps(body)
    assert (tmp_path / "team/key").read_bytes() == key
    # A name is used once.
    for route in ("remotes/test", "remotes"):
        status, body = server.refused("POST", route, json=wanted)
        assert (status, body["code"]) == (400, "configuration")

    # Each line is a new one; the others stay valid.
    other = server.request("POST", "api/gpuckpt/remotes/team/line").json()["line"]
    assert other.startswith(wanted["url"] + " ")
    assert other != line
    status, body = server.refused("POST", "remotes/none/line")
    assert (status, body["code"]) == (404, "remote_not_found")
    # By its line it is joined, as on another machine; that line is no longer shown.
    joined = server.request(
        "POST",
        "api/gpuckpt/remotes",
        json={"name": "again", "joins": True, "secret": {"line": line}},
    ).json()
    assert joined == {"name": "again", "warnings": [], "line": ""}
    assert remote_list() == ["team", "again"]


def test_a_page_that_joins_hears_what_does_not_work_and_no_secret_is_repeated(
    server, remote_list, tmp_path
):
    made = server.request(
        "POST", "api/gpuckpt/remotes", json={"name": "team", "url": f"file://{tmp_path}/team"}
    ).json()["line"]
    url, store, generation, code = made.rsplit(maxsplit=3)
    wrong = "A" * len(code)
    for line, joins, told in (
        (f"{url} {store} {generation} {wrong}", True, "not a line that joins a remote"),
        (f"file://{tmp_path}/empty {store} {generation} {code}", True, "no store at"),
        ("", True, "cannot be used"),
    ):
        wanted = {"name": "other", "joins": joins, "secret": {"line": line}}
        _, body = server.refused("POST", "remotes", json=wanted)
        assert told in body["message"]
        text = json.dumps(body)
        assert code not in text
        assert wrong not in text
    assert remote_list() == ["team"]
    assert not (tmp_path / "empty/key").exists()
    log = Path(server.env["JUPYTER_GPUCKPT_DATA_DIR"], "log/gpuckptd.log").read_text()
    assert code not in log
