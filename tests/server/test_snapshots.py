"""Snapshots by REST: what pages see of them, what they may do with them, and what they hear."""

import io
import socket
import subprocess
import tarfile

import pytest

from jupyter_gpuckpt.client import Client
from jupyter_gpuckpt.server.events import kernel_events
from jupyter_gpuckpt.wire import calls
from tests.conftest import wait_for
from tests.programs import python_module
from tests.server.contract import DOCUMENT

VIEW = DOCUMENT["components"]["schemas"]["SnapshotView"]
DELETED = {"deleted_at", "kept_until"}


def listed(server, asked="", page=None):
    of = f"?kernel_id={page.kernel_id}{asked}" if page else asked
    return server.get(f"api/gpuckpt/snapshots{of}")["snapshots"]


def save(server, page, **body):
    return server.do("save", page.kernel_id, **body)["result"]["snapshot_id"]


def test_a_snapshot_is_shown_as_described_and_changed(shared_server):
    server, page = shared_server, shared_server.open("analysis.ipynb")
    snapshot_id = save(server, page, name="before the long run")
    (view,) = listed(server, page=page)
    assert set(view) == set(VIEW["properties"]) - DELETED
    assert set(VIEW["required"]) <= set(view)
    assert (view["name"], view["title"]) == ("analysis.ipynb", "before the long run")
    assert (view["pinned"], view["note"]) == (True, "")
    assert (view["needed"], view["kernel_live"]) == (False, True)
    path = f"api/gpuckpt/snapshots/{snapshot_id}"
    changed = server.request("PATCH", path, json={"note": "good", "pinned": False}).json()
    assert changed == {**view, "note": "good", "pinned": False}
    assert listed(server, page=page) == [changed]
    assert listed(server, "?path=analysis.ipynb") == [changed]
    assert listed(server, "?path=other.ipynb") == []
    # The kernel keeps its own name.
    save(server, page)
    assert [one["title"] for one in listed(server, page=page)] == ["", "before the long run"]
    assert {one["name"] for one in listed(server, page=page)} == {"analysis.ipynb"}
    for body in ({"titel": "x"}, {"pinned": "yes"}, {"note": "x" * 20_001}):
        status, _ = server.refused("PATCH", f"snapshots/{snapshot_id}", json=body)
        assert status == 400


def test_a_snapshot_names_the_cell_before_or_in_which_it_was_taken(shared_server):
    server, page = shared_server, shared_server.open("cells.ipynb")

    def expect(cell, *, in_cell=False):
        snapshot_id = save(server, page)
        newest = listed(server, page=page)[0]
        assert newest["snapshot_id"] == snapshot_id
        assert (newest["title"], newest["cell"], newest["in_cell"]) == ("", cell, in_cell)
        return snapshot_id

    expect(0)
    page.run("1")
    after = expect(1)
    go = server.root / "cells.go"
    request = page.execute(
        f"import os, time\nwhile not os.path.exists({str(go)!r}): time.sleep(0.01)"
    )
    page.wait_for(lambda told: told["content"].get("execution_count") == 2)
    during = expect(2, in_cell=True)
    go.touch()
    page.reply(request)
    expect(2)
    # A kernel that goes back counts from there.
    server.do("roll_back", page.kernel_id, snapshot_id=after)
    expect(1)
    command = [*python_module("jupyter_gpuckpt.cli"), "list", "--kernel", page.kernel_id]
    lines = subprocess.run(command, env=server.env, check=True, capture_output=True, text=True)
    titles = {line.split()[0]: line for line in lines.stdout.splitlines()}
    found = {key: line for key, line in titles.items() if during.startswith(key)}
    assert ["During [2]" in line for line in found.values()] == [True]
    assert lines.stdout.count("After [1]") == 2


def test_a_deletion_is_undone_and_what_a_kernel_needs_is_kept(server, make_listener):
    page = server.open()
    listener = make_listener(kernel_events.SNAPSHOT)
    first = save(server, page)
    server.do("suspend", page.kernel_id)
    needed, _ = listed(server)
    assert (needed["needed"], needed["kernel_live"]) == (True, True)
    status, error = server.refused("DELETE", f"snapshots/{needed['snapshot_id']}")
    assert (status, error["code"]) == (409, "snapshot_in_use")
    before = listed(server)[1]
    assert server.request("DELETE", f"api/gpuckpt/snapshots/{first}").status_code == 204
    assert listed(server) == [needed]
    (deleted,) = listed(server, "?deleted=1")
    assert {name: deleted[name] for name in before} == before
    assert deleted["kept_until"] - deleted["deleted_at"] == pytest.approx(60)
    back = server.request("POST", f"api/gpuckpt/snapshots/{first}/undelete").json()
    assert back == before
    # What the command line does is told as well.
    with pytest.MonkeyPatch.context() as patch:
        for name, value in server.env.items():
            patch.setenv(name, value)
        with Client.connect() as client:
            client.send(calls.annotate(first, title="by hand"))

    def heard():
        return [(e["snapshot_id"], e["change"]) for e in listener.heard]

    expected = [
        (first, "added"),
        (needed["snapshot_id"], "added"),
        (first, "removed"),
        (first, "restored"),
        (first, "changed"),
    ]
    wait_for(lambda: len(heard()) >= len(expected))
    assert heard() == expected
    assert {e["kernel_id"] for e in listener.heard} == {page.kernel_id}


def test_one_goes_out_and_is_verified(shared_server):
    server, page = shared_server, shared_server.open()
    snapshot_id = save(server, page, name="mine")
    verified = server.request("POST", f"api/gpuckpt/snapshots/{snapshot_id}/verify").json()
    assert verified["ok"] is True
    assert verified["problems"] == []
    assert verified["checked_bytes"] > 1_000_000
    export = f"api/gpuckpt/snapshots/{snapshot_id}/export?name=a%20%22%0D%0A"
    response = server.request("GET", export)
    assert response.headers["Content-Type"] == "application/x-tar"
    assert 'filename="a-.tar"' in response.headers["Content-Disposition"]
    content = response.content
    assert len(content) == int(response.headers["Content-Length"])
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        assert archive.getnames()[-1] == f"manifests/{snapshot_id}.manifest"
    status, error = server.refused("POST", "snapshots/import", content=content)
    assert (status, error["code"]) == (409, "snapshot_exists")
    server.do("suspend", page.kernel_id)
    server.request("DELETE", f"api/gpuckpt/snapshots/{snapshot_id}")
    status, error = server.refused("POST", "snapshots/import", content=content)
    assert (status, error["code"]) == (409, "snapshot_exists")
    assert "undo" in error["hint"]


def test_what_is_no_export_is_refused_and_a_page_that_goes_leaves_nothing(make_server, tmp_path):
    # Another user's: a server, a daemon and a store of its own.
    env = {"JUPYTER_GPUCKPT_DATA_DIR": str(tmp_path / "data")}
    server = make_server("--GpuCkptDaemon.undo_delete_for=0", env=env).start()
    page = server.open()
    assert server.get("api/gpuckpt/store")["undo_delete_seconds"] == 0
    page.run("import os; data = os.urandom(20_000_000)")
    snapshot_id = save(server, page)
    content = server.request("GET", f"api/gpuckpt/snapshots/{snapshot_id}/export").content
    (view,) = listed(server)
    server.request("DELETE", f"api/gpuckpt/snapshots/{snapshot_id}")
    assert listed(server) == []
    for broken in (b"", b"x" * 100_000, content[:-3000], content[:2_000_000]):
        status, error = server.refused("POST", "snapshots/import", content=broken)
        assert (status, error["code"]) == (400, "archive_invalid")
        assert listed(server) == []
    packs = tmp_path / "data" / "store" / "packs"
    with socket.create_connection(("127.0.0.1", server.port)) as sender:
        head = (
            f"POST /api/gpuckpt/snapshots/import HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\n"
            f"Authorization: token {server.token}\r\nContent-Length: {len(content)}\r\n\r\n"
        )
        sender.sendall(head.encode() + content[: 3 * len(content) // 4])
        wait_for(lambda: any(packs.iterdir()))
    wait_for(lambda: not any(packs.iterdir()))
    # Who may not write sends nothing to the daemon.
    token, server.token = server.token, "wrong"
    assert server.refused("POST", "snapshots/import", content=content)[0] == 403
    server.token = token
    brought = server.request("POST", "api/gpuckpt/snapshots/import", content=content)
    assert brought.status_code == 201
    assert brought.json() == {"snapshots": [view]}
    assert listed(server) == [view]


def test_the_store_is_shown_by_notebook(shared_server):
    server = shared_server
    for path in ("one.ipynb", "other.ipynb"):
        save(server, server.open(path))
    store = server.get("api/gpuckpt/store")
    assert set(store) == set(DOCUMENT["components"]["schemas"]["StoreView"]["properties"])
    assert {"one.ipynb", "other.ipynb"} <= {named["name"] for named in store["by_name"]}
    for named in store["by_name"]:
        assert 0 < named["exclusive_bytes"] < named["stored_bytes"] < named["raw_bytes"]
    assert store["raw_bytes"] > store["unique_bytes"] > store["stored_bytes"]
    assert store["snapshots"] >= 2
    # The defaults of `c.GpuCkptDaemon`.
    assert store["undo_delete_seconds"] == 60
    assert (store["retention"]["keep_last"], store["retention"]["keep_suspends"]) == (3, 10)
