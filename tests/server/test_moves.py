"""Moves of kernels to another machine, and resumes of sessions that another machine has, as a page asks for them."""

from contextlib import contextmanager
from pathlib import Path

import pytest

from jupyter_gpuckpt.daemon.remotes import remote_keys
from jupyter_gpuckpt.remote.lease_objects import Leases
from jupyter_gpuckpt.remote.remote_list import Remotes
from jupyter_gpuckpt.remote.remote_sessions import Sessions
from jupyter_gpuckpt.wire.remote_records import RemoteVerb
from tests.remote.installations import add_remote, ask

#: Bytes per second, too few for the snapshot of a kernel to be uploaded within a test.
NEVER = 1000


@pytest.fixture
def server(clean_server):
    return clean_server


@pytest.fixture
def data_dir(server):
    return Path(server.env["JUPYTER_GPUCKPT_DATA_DIR"])


@pytest.fixture
def shared(data_dir, tmp_path):
    """Return a context with a remote, in a folder."""

    @contextmanager
    def with_remote(name="share", **fields):
        add_remote(data_dir, name, f"file://{tmp_path}/{name}", **fields)
        try:
            yield tmp_path / name
        finally:
            ask(RemoteVerb.REMOVE, data_dir, name)

    return with_remote


@pytest.fixture
def other_machine(data_dir):
    """Return a function that opens the remote as another machine does: its remote sessions, and the leases of a daemon there."""

    return lambda: opened(data_dir)


def opened(data_dir):
    there = remote_keys.opened(data_dir, Remotes(data_dir).get("share"))
    found = Sessions(there.bucket, there.key.seal, there.seen)
    return found, Leases(there.bucket, there.key.seal, found, "b", host_name="far away")


def test_a_kernel_is_moved_by_a_page_and_another_machine_gets_it(
    server, shared, other_machine, make_listener
):
    page = server.open()
    page.run("x = 41")
    heard = make_listener("https://events.jupyter.org/jupyter_gpuckpt/kernel/v1").heard
    with shared() as folder:
        done = server.do("move", page.kernel_id)
        assert (done["kind"], done["kernel_id"]) == ("move", page.kernel_id)
        kernel = server.kernel(page.kernel_id)
        assert (kernel["state"], kernel["operation"]) == ("suspended", None)
        assert kernel["moved_to"] == "share"
        assert done["result"]["snapshot_id"] == kernel["snapshot_id"]
        assert done["result"]["warnings"] == []
        assert list((folder / "manifests").iterdir())
        found, _ = other_machine()
        session = found.get(page.kernel_id)
        assert session.lease is None
        assert session.moved_at
        # All pages saw what was going on, under one operation's id.
        seen = [one["operation"] for one in heard if one["operation"]]
        moves = [one for one in seen if one["operation_id"] == done["operation_id"]]
        assert {one["kind"] for one in moves} == {"move"}
        stages = [one["progress"]["stage"] for one in moves]
        assert stages.index("capture") < len(stages) - 1 - stages[::-1].index("upload")
        # What was moved can still go on here, as long as no other machine has it.
        assert page.run("print(x + 1)") == "42\n"
        assert server.kernel(page.kernel_id)["moved_to"] is None
        page.close()


def test_a_page_hears_that_other_kernels_run_here(server, shared):
    page, other = server.open("a.ipynb"), server.open("b.ipynb")
    page.run("1")
    other.run("1")
    with shared():
        [warning] = server.do("move", page.kernel_id)["result"]["warnings"]
    assert "1 other kernel on this machine" in warning


def test_a_move_that_fails_or_is_canceled_leaves_the_kernel_as_it_was(server, shared, eventually):
    page = server.open()
    page.run("x = 41")
    with shared() as folder:
        (folder / "epoch").write_text("This is none.")
        failed = server.finish(server.begin("move", page.kernel_id))
        assert failed["state"] == "failed"
        assert "epoch" in failed["error"]["message"]
        assert failed["error"]["hint"].endswith("The kernel was not moved and runs on here.")
        assert server.kernel(page.kernel_id)["state"] == "running"
        assert page.run("print(x)") == "41\n"
    with shared("slow", upload_rate=NEVER, automatic=False):
        begun = server.begin("move", page.kernel_id, remote="slow")
        path = f"api/gpuckpt/operations/{begun['operation_id']}"
        eventually(lambda: server.get(path)["progress"]["stage"] == "upload")
        status, body = server.refused("POST", f"kernels/{page.kernel_id}/move", json={})
        assert (status, body["code"]) == (409, "kernel_state_conflict")
        # The operation in flight is the move, for every page.
        assert server.kernel(page.kernel_id)["operation"]["kind"] == "move"
        server.request("POST", f"{path}/cancel")
        ended = server.finish(begun)
        assert (ended["state"], ended["error"]["code"]) == ("cancelled", "operation_cancelled")
        assert server.kernel(page.kernel_id)["state"] == "running"
        assert page.run("print(x + 1)") == "42\n"


def test_what_cannot_be_moved_is_refused(server, shared):
    page = server.open()
    path = f"kernels/{page.kernel_id}/move"
    status, body = server.refused("POST", path, json={})
    assert (status, body["code"]) == (400, "configuration")
    assert body["message"] == "There is no remote to which the kernel could be moved."
    assert body["hint"] == "Add one."
    with shared():
        status, body = server.refused("POST", path, json={"remote": "none"})
        assert (status, body["code"]) == (404, "remote_not_found")
        status, body = server.refused("POST", "kernels/nobody/move", json={})
        assert (status, body["code"]) == (404, "kernel_not_found")
    assert server.kernel(page.kernel_id)["state"] == "running"


def test_a_session_that_another_machine_has_is_resumed_only_after_a_warning(
    server, shared, other_machine
):
    page = server.open()
    page.run("x = 41")
    with shared():
        server.do("move", page.kernel_id)
        suspended_at = server.kernel(page.kernel_id)["since"]
        found, other = other_machine()
        other.claim(page.kernel_id)
        refused = server.finish(server.begin("resume", page.kernel_id))
        assert refused["state"] == "failed"
        assert refused["error"]["code"] == "session_held"
        assert "runs on machine far away" in refused["error"]["message"]
        kernel = server.kernel(page.kernel_id)
        assert (kernel["state"], kernel["moved_to"]) == ("suspended", "share")
        # It is suspended since its suspend, not since the attempt.
        assert kernel["since"] == suspended_at < kernel["failed_at"]
        server.do("resume", page.kernel_id, take_over=True)
        assert page.run("print(x + 1)") == "42\n"
        assert found.get(page.kernel_id).lease.daemon_id != "b"
        page.close()


def test_that_a_session_was_taken_over_is_kept_until_its_user_chooses(
    make_server, daemon_env, tmp_path, eventually
):
    server = make_server()
    server.start()
    data_dir = Path(daemon_env["JUPYTER_GPUCKPT_DATA_DIR"])
    page = server.open()
    page.run("x = 41")
    add_remote(data_dir, "share", f"file://{tmp_path}/share")
    found, other = opened(data_dir)
    server.do("save", page.kernel_id)
    eventually(lambda: page.kernel_id in found.ids() and found.get(page.kernel_id).lease)
    assert server.kernel(page.kernel_id)["taken_over"] is None
    other.claim(page.kernel_id, take_over=True)
    server.do("save", page.kernel_id)  # the daemon learns it when it lists this one

    def taken_over():
        return server.kernel(page.kernel_id)["taken_over"]

    eventually(taken_over)
    assert "was taken over by machine far away" in taken_over()
    # What is done to the kernel clears its error, and decides nothing about its notebook.
    server.do("suspend", page.kernel_id)
    server.do("resume", page.kernel_id)
    assert server.kernel(page.kernel_id)["error_code"] is None
    assert taken_over()
    server.request("POST", f"api/kernels/{page.kernel_id}/restart")
    assert taken_over()
    # Nor does another kernel of the notebook, whether it replaces this one or comes when this one is gone.
    path = f"api/sessions/{page.session_id}"
    model = server.request("PATCH", path, json={"kernel": {"id": None, "name": "python3"}}).json()
    page.kernel_id = model["kernel"]["id"]
    eventually(taken_over)
    server.request("DELETE", path)
    server.stop()
    server.start()
    page = server.open()
    eventually(taken_over)
    answer = server.request("POST", f"api/gpuckpt/kernels/{page.kernel_id}/keep_saving").json()
    assert answer["taken_over"] is None
    server.stop()
    server.start()
    assert taken_over() is None
