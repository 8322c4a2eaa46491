"""A shutdown can be undone for a while, and File -> Shut Down, which shuts down all kernels first, loses none."""

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from jupyter_gpuckpt.host import processes
from tests.conftest import wait_for


@pytest.fixture
def server(make_server):
    """Return a server under which there is time enough to undo a shutdown on a slow machine, too."""
    return make_server("--GpuCkptServer.undo_shutdown_for=300").start()


def pid_of(page):
    """As it is seen from here, outside of the kernel's own PID namespace."""
    kernels = [
        pid
        for pid in processes.every()
        if any(f"kernel-{page.kernel_id}" in word for word in processes.arguments(pid))
        and processes.nspid(pid) != 1
    ]
    return max(kernels)


def delete_session(server, page):
    assert server.request("DELETE", f"api/sessions/{page.session_id}").status_code == 204


def test_a_kernel_that_was_shut_down_comes_back_with_its_session_and_its_page(
    server, make_listener
):
    page = server.open()
    page.run("x = 41")
    pid = pid_of(page)
    actions = make_listener("https://events.jupyter.org/jupyter_server/kernel_actions/v1")
    delete_session(server, page)
    wait_for(lambda: actions.heard)
    assert (actions.heard[0]["action"], actions.heard[0]["kernel_id"]) == (
        "shutdown",
        page.kernel_id,
    )
    assert server.get("api/sessions") == server.get("api/kernels") == []
    assert processes.state(pid) == "T"
    (kept,) = server.get("api/gpuckpt/shut_down")["kernels"]
    assert (kept["kernel_id"], kept["path"]) == (page.kernel_id, "notebook.ipynb")
    assert 100 < kept["ends_at"] - time.time() <= 300
    server.request("POST", f"api/gpuckpt/kernels/{page.kernel_id}/undo_shutdown")
    (session,) = server.get("api/sessions")
    assert (session["id"], session["kernel"]["id"]) == (page.session_id, page.kernel_id)
    assert page.run("x += 1; print(x)") == "42\n"
    assert server.page(page.kernel_id).run("print(x)") == "42\n"
    assert server.get("api/gpuckpt/shut_down")["kernels"] == []
    assert server.kernel(page.kernel_id)["state"] == "running"


def test_a_kernel_that_was_shut_down_twice_at_once_answers_after_the_undo(server):
    page = server.open()
    page.run("x = 42")
    path = f"api/kernels/{page.kernel_id}"
    with ThreadPoolExecutor(2) as users:
        answers = users.map(lambda _: server.request("DELETE", path, ok=False), range(2))
        assert {answer.status_code for answer in answers} <= {204, 404}
    server.request("POST", f"api/gpuckpt/kernels/{page.kernel_id}/undo_shutdown")
    assert page.run("print(x)") == "42\n"


def test_when_the_time_is_over_it_ends_as_jupyter_ends_kernels(server_with, tmp_path):
    server = server_with("--GpuCkptServer.undo_shutdown_for=0.5")
    page = server.open()
    left = tmp_path / "left"
    page.run(f"import atexit, pathlib; atexit.register(pathlib.Path({str(left)!r}).touch)")
    connection = Path(
        page.run("from ipykernel.connect import *; print(get_connection_file())")[:-1]
    )
    pid = pid_of(page)
    delete_session(server, page)
    wait_for(lambda: not processes.exists(pid))
    wait_for(lambda: not connection.exists())
    assert left.exists()
    status, error = server.refused("POST", f"kernels/{page.kernel_id}/undo_shutdown")
    assert (status, error["code"]) == (404, "kernel_not_found")
    assert "last snapshot" in error["hint"]


def test_without_undo_it_ends_at_once(server_with):
    server = server_with("--GpuCkptServer.undo_shutdown_for=0")
    page = server.open()
    pid = pid_of(page)
    delete_session(server, page)
    assert not processes.exists(pid)


def test_a_suspended_kernel_comes_back_suspended(server):
    page = server.open()
    page.run("x = 1")
    server.do("suspend", page.kernel_id)
    delete_session(server, page)
    server.request("POST", f"api/gpuckpt/kernels/{page.kernel_id}/undo_shutdown")
    assert server.kernel(page.kernel_id)["state"] == "suspended"
    assert page.run("print(x)") == "1\n"


# How a server is stopped makes no difference; the page of JupyterLab asks for it by REST.
@pytest.mark.parametrize("how", [None, pytest.param(15, marks=pytest.mark.slow)])
def test_all_sessions_deleted_and_the_server_stopped_right_after_loses_nothing(server, how):
    """What JupyterLab's and Notebook's File -> Shut Down do."""
    pages = [server.open(f"{name}.ipynb") for name in "ab"]
    for number, page in enumerate(pages):
        page.run(f"x = {number}")
    server.do("suspend", pages[1].kernel_id)
    for page in pages:
        delete_session(server, page)
    server.stop(how)
    server.start()
    found = {s["path"]: (s["id"], s["kernel"]["id"]) for s in server.get("api/sessions")}
    expected = {f"{n}.ipynb": (p.session_id, p.kernel_id) for n, p in zip("ab", pages, strict=True)}
    assert found == expected
    for number, page in enumerate(pages):
        assert server.page(page.kernel_id).run("print(x)") == f"{number}\n"


def test_a_kernel_that_was_replaced_by_another_does_not_come_back(server):
    page = server.open()
    body = {"kernel": {"name": "python3"}}
    changed = server.request("PATCH", f"api/sessions/{page.session_id}", json=body).json()
    server.stop()
    server.start()
    assert [kernel["id"] for kernel in server.get("api/kernels")] == [changed["kernel"]["id"]]


def test_its_periodic_saves_are_deleted_with_it_but_not_what_a_user_saved(server_with):
    server = server_with(
        "--GpuCkptServer.undo_shutdown_for=0.5",
        "--GpuCkptServer.lose_at_most=0.5",
        "--GpuCkptServer.autosave_cost=1000",
    )

    def snapshots(query=""):
        found = server.get(f"api/gpuckpt/snapshots{query}")["snapshots"]
        return {one["snapshot_id"]: one["cause"] for one in found}

    page = server.open()
    saved = server.do("save", page.kernel_id)["result"]["snapshot_id"]
    for number in range(2):
        page.run(f"x = {number}")
        wait_for(lambda number=number: len(snapshots()) > number + 1)
    delete_session(server, page)
    wait_for(lambda: snapshots() == {saved: "manual"}, said=server.log)
    # The newest can be undeleted for a day.
    [(newest, cause)] = snapshots("?deleted=1").items()
    assert cause == "autosave"
    server.request("POST", f"api/gpuckpt/snapshots/{newest}/undelete")
    assert snapshots() == {saved: "manual", newest: "autosave"}
