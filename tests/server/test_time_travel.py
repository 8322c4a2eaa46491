"""Branches of a notebook's kernel, and ways back to its older snapshots, as pages see them."""

import json
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from jupyter_gpuckpt.daemon.snapshots.user_deletions import UserDeletions
from jupyter_gpuckpt.remote.remote_list import state_folder
from jupyter_gpuckpt.wire.remote_records import RemoteVerb
from tests.conftest import wait_for
from tests.programs import NOISE
from tests.remote.installations import add_remote, ask

NOTEBOOK = {"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}


@pytest.fixture
def server(clean_server):
    return clean_server


@pytest.fixture
def page(server, request):
    name = f"{request.node.name}.ipynb"
    (server.root / name).write_text(json.dumps(NOTEBOOK))
    page = server.open(name)
    page.notebook = name
    return page


def branch(server, snapshot_id, **body):
    """Return a page on a new branch."""
    answer = server.request("POST", f"api/gpuckpt/snapshots/{snapshot_id}/branch", json=body).json()
    operation = server.finish(answer)
    assert operation["state"] == "succeeded", operation
    assert operation["kind"] == "branch"
    made = server.page(answer["kernel_id"])
    made.notebook, made.result = answer["path"], operation["result"]
    return made


def wait_until_it_is(state, server, page):
    wait_for(lambda: server.get(f"api/kernels/{page.kernel_id}")["execution_state"] == state)


def test_three_branches_go_their_own_ways_beside_the_kernel(server, page):
    page.run("import os, random; x = ['common']; counter = 0")
    snapshot_id = server.do("save", page.kernel_id)["result"]["snapshot_id"]
    page.run("x.append('first')")
    pages = [page, *(branch(server, snapshot_id) for _ in range(3))]
    for number, each in enumerate(pages[1:]):
        assert each.run(f"x.append({number}); print(x)") == f"['common', {number}]\n"
    assert page.run("print(x)") == "['common', 'first']\n"
    # Each is a kernel with a notebook, a session and ports of its own.
    sessions = {row["kernel"]["id"]: row["path"] for row in server.get("api/sessions")}
    stem = page.notebook.removesuffix(".ipynb")
    assert sessions == {each.kernel_id: each.notebook for each in pages}
    assert [each.notebook for each in pages[1:]] == [f"{stem}-branch-{n}.ipynb" for n in (1, 2, 3)]
    assert all((server.root / each.notebook).exists() for each in pages)
    files = [
        each.run("from ipykernel import get_connection_file as f; print(f())") for each in pages
    ]
    for each, file in zip(pages, files, strict=True):
        assert each.kernel_id in file
        info = each.run("%connect_info")
        told = json.loads(Path(file.strip()).read_text())
        assert f'"shell_port": {told["shell_port"]}' in info
    # What forked children print comes out where they were forked.
    fork = "pid = os.fork()\nif not pid:\n    print('child', x[1]); os._exit(0)\nos.waitpid(pid, 0)"
    for each, word in zip(pages, ("first", 0, 1, 2), strict=True):
        cell = each.execute(fork)
        wait_for(lambda each=each, cell=cell: each.printed(cell).endswith("\n"))
        assert each.printed(cell) == f"child {word}\n"
    # The debugger of each is its own.
    name = "IPKernelApp.instance().debug_shell_socket.getsockopt_string(32)"
    for each in pages:
        where = each.run(f"from ipykernel.kernelapp import IPKernelApp; print({name})").strip()
        port = each.run("print(IPKernelApp.instance().shell_port)").strip()
        assert where.endswith(f":{port}")
    # And so is its history.
    numbers = [each.run("print(get_ipython().history_manager.session_number)") for each in pages]
    assert len(set(numbers)) == len(pages)


#: Prints what a stranger must not be able to guess from another copy, then what goes on in each copy as it was.
SECRETS = """
import hashlib, multiprocessing, ssl, tempfile
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, x25519
formats = serialization.Encoding.DER, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
keys = ed25519.Ed25519PrivateKey, x25519.X25519PrivateKey
made = [*(key.generate() for key in keys), ec.generate_private_key(ec.SECP256R1())]
print(*(hashlib.sha256(key.private_bytes(*formats)).hexdigest() for key in made))
name, own = next(tempfile._get_candidate_names()), multiprocessing.current_process().authkey.hex()
print(ssl.RAND_bytes(16).hex(), name, own, dice.random())
"""


@pytest.mark.parametrize("count", [2, pytest.param(30, marks=pytest.mark.slow)])
def test_secrets_are_new_in_every_branch_and_after_every_way_back(server, page, count):
    page.run(f"import random; dice = random.Random(1)\n{SECRETS}")
    snapshot_id = server.do("save", page.kernel_id)["result"]["snapshot_id"]
    found = []
    for _ in range(count):
        made = branch(server, snapshot_id)
        found.append(made.run(SECRETS).split())
        server.request("DELETE", f"api/kernels/{made.kernel_id}")
    for _ in range(2):
        found.append(page.run(SECRETS).split())
        server.do("roll_back", page.kernel_id, snapshot_id=snapshot_id)
    *secrets, numbers = zip(*found, strict=True)
    assert [len(set(values)) for values in secrets] == [count + 2] * len(secrets)
    assert len(set(numbers)) == 1


def test_a_suspended_kernel_goes_on_with_the_key_that_others_may_know(server, page):
    key = "import multiprocessing; print(multiprocessing.current_process().authkey.hex())"
    before = page.run(key)
    server.do("suspend", page.kernel_id)
    server.do("resume", page.kernel_id)
    assert page.run(key) == before


def test_a_branch_tells_where_the_users_own_ports_are_now(server, page):
    listen = """
import socket, threading
word, listener = "first", socket.create_server(("127.0.0.1", 0))
def answer():
    while True:
        with listener.accept()[0] as connection:
            connection.sendall(word.encode())
threading.Thread(target=answer, daemon=True).start()
print(listener.getsockname()[1])
"""
    port = int(page.run(listen))
    saved = server.do("save", page.kernel_id)["result"]
    assert saved["moved_ports"] == {}
    made = branch(server, saved["snapshot_id"])
    made.run("word = 'branch'")
    # ipykernel may have a listener of its own beside it.
    now = made.result["moved_ports"][str(port)]
    assert [word_at(each) for each in (port, now)] == ["first", "branch"]


def word_at(port):
    with socket.create_connection(("127.0.0.1", port), 120) as connection:
        return connection.makefile().read()


def test_a_branch_outlives_the_server_and_the_kernel_that_it_was_made_from(server, page):
    page.run("x = 1")
    snapshot_id = server.do("save", page.kernel_id)["result"]["snapshot_id"]
    made = branch(server, snapshot_id)
    made.run("x = 2")
    server.request("DELETE", f"api/sessions/{page.session_id}")
    server.stop()
    server.start()
    rows = {row["kernel"]["id"]: row["path"] for row in server.get("api/sessions")}
    assert rows == {made.kernel_id: made.notebook}
    assert server.page(made.kernel_id).run("print(x)") == "2\n"


def test_a_branch_from_the_middle_of_a_cell_shows_all_that_the_cell_says(server, page, tmp_path):
    end = tmp_path / "end"
    page.run("import os, time; print('of an earlier cell')")
    code = (
        f"print('first')\nwhile not os.path.exists({str(end)!r}): time.sleep(0.01)\nprint('last')"
    )
    content = {"code": code, "silent": False, "store_history": True}
    cell = page.send("execute_request", content, metadata={"cellId": "the cell"})
    later = page.send("execute_request", {"code": "print('then')"}, metadata={"cellId": "next"})
    wait_for(lambda: page.printed(cell) == "first\n")
    saved = server.do("save", page.kernel_id)["result"]["snapshot_id"]
    answer = server.request("POST", f"api/gpuckpt/snapshots/{saved}/branch", json={}).json()
    # One page is there before the kernel is back, another comes while the cell runs.
    early = server.page(answer["kernel_id"])
    assert server.finish(answer)["state"] == "succeeded"
    late = server.page(answer["kernel_id"])
    pages = (early, late)
    for each in pages:
        wait_for(lambda each=each: each.printed(cell) == "first\n")
    end.touch()
    for each in pages:
        wait_for(lambda each=each: each.printed(later) == "then\n")
        assert each.printed(cell) == "first\nlast\n"
        of = {cell: "the cell", later: "next"}
        said = [m for m in each.received if m["parent_header"].get("msg_id") in of]
        assert all(m["metadata"]["cellId"] == of[m["parent_header"]["msg_id"]] for m in said)
        assert "of an earlier cell" not in str(each.received)
    assert page.output(cell) == "first\nlast\n"
    wait_until_it_is("idle", server, early)
    assert early.run("print(1)") == "1\n"


def resume(server, snapshot_id, **body):
    """Return a page on the kernel with which a snapshot was resumed."""
    path = f"api/gpuckpt/snapshots/{snapshot_id}/resume"
    answer = server.request("POST", path, json=body).json()
    operation = server.finish(answer)
    assert operation["state"] == "succeeded", operation
    resumed = server.page(answer["kernel_id"])
    resumed.notebook = answer["path"]
    return resumed


def test_a_snapshot_is_resumed_as_its_own_kernel_or_as_a_branch_while_that_runs(server, page):
    page.run("x = 'first'")
    first = server.do("save", page.kernel_id)["result"]["snapshot_id"]
    page.run("x = 'second'")
    # Its kernel runs.
    beside = resume(server, first)
    assert beside.kernel_id != page.kernel_id
    assert beside.notebook != page.notebook
    assert beside.run("print(x)") == "first\n"
    assert page.run("print(x)") == "second\n"
    # Its kernel is suspended: the open page goes on with it.
    second = server.do("suspend", page.kernel_id)["result"]["snapshot_id"]
    again = resume(server, first, path=page.notebook)
    assert (again.kernel_id, again.notebook) == (page.kernel_id, page.notebook)
    assert page.run("print(x)") == "first\n"
    # It is suspended, and another notebook is to go on.
    server.do("suspend", page.kernel_id)
    other = resume(server, second, path="elsewhere.ipynb")
    assert other.kernel_id != page.kernel_id
    assert other.notebook == "elsewhere.ipynb"
    assert other.run("print(x)") == "second\n"
    assert server.kernel(page.kernel_id)["state"] == "suspended"
    assert page.run("print(x)") == "first\n"
    # Its kernel has ended.
    server.request("DELETE", f"api/kernels/{page.kernel_id}")
    back = resume(server, second, path=page.notebook)
    assert (back.kernel_id, back.notebook) == (page.kernel_id, page.notebook)
    assert back.run("print(x)") == "second\n"
    kernel = server.kernel(page.kernel_id)
    assert (kernel["snapshot_id"], kernel["parent_snapshot_id"]) == (second, None)
    [session] = [one for one in server.get("api/sessions") if one["path"] == page.notebook]
    assert session["kernel"]["id"] == page.kernel_id


def entries(server):
    """Return the names of everything below the root, but for a folder that Jupyter makes with the first notebook and leaves."""
    return sorted(p.name for p in server.root.rglob("*") if p.name != ".ipynb_checkpoints")


def test_a_branch_goes_where_one_wants_it_and_what_cannot_be_made_leaves_nothing(server, page):
    page.run("x = 1")
    saved = server.do("save", page.kernel_id)["result"]["snapshot_id"]
    (server.root / "there").mkdir(exist_ok=True)
    made = branch(server, saved, path="there/other.ipynb")
    assert made.notebook == "there/other.ipynb"
    assert json.loads((server.root / "there/other.ipynb").read_text())["nbformat"] == 4
    # A console has no file.
    console = {"path": "there/console-1-9b8c", "type": "console"}
    server.request("PATCH", f"api/sessions/{page.session_id}", json=console)
    saved_there = server.do("save", page.kernel_id)["result"]["snapshot_id"]
    assert branch(server, saved_there).notebook == "there/console.ipynb"
    before = entries(server)
    kernels = {kernel["id"] for kernel in server.get("api/kernels")}
    status, error = server.refused("POST", "snapshots/none/branch", json={})
    assert (status, error["code"]) == (404, "snapshot_not_found")
    status, _ = server.refused("POST", f"snapshots/{saved}/branch", json={"path": "no/where.ipynb"})
    assert status == 400
    # A branch that does not come up: its working directory is gone when it is tried.
    moved = server.root / "gone"
    moved.mkdir()
    page.run(f"import os; os.chdir({str(moved)!r})")
    page.run("lock = open('lock', 'w')")
    fails = server.do("save", page.kernel_id)["result"]["snapshot_id"]
    (moved / "lock").unlink()
    moved.rmdir()
    answer = server.request("POST", f"api/gpuckpt/snapshots/{fails}/branch", json={}).json()
    operation = server.finish(answer)
    assert operation["state"] == "failed"
    wait_for(lambda: {kernel["id"] for kernel in server.get("api/kernels")} == kernels)
    wait_for(lambda: entries(server) == before)
    assert page.run("print(x)") == "1\n"


def test_a_kernel_goes_back_and_what_it_was_is_kept(server, page):
    page.run("x = 'then'")
    then = server.do("save", page.kernel_id)["result"]["snapshot_id"]
    page.run("x = 'now'")
    operation = server.do("roll_back", page.kernel_id, snapshot_id=then)
    assert operation["kind"] == "roll_back"
    assert page.run("print(x)") == "then\n"
    snapshots = server.get(f"api/gpuckpt/snapshots?kernel_id={page.kernel_id}")["snapshots"]
    assert [snapshot["cause"] for snapshot in snapshots] == ["rollback", "manual"]
    # Which can be undone the same way.
    server.do("roll_back", page.kernel_id, snapshot_id=snapshots[0]["snapshot_id"])
    assert page.run("print(x)") == "now\n"


def test_what_is_kept_of_the_present_does_not_push_out_where_a_kernel_goes_back_to(make_server):
    server = make_server("--GpuCkptDaemon.keep_last=1").start()
    page = server.open()
    page.run("x = 'then'")
    then = server.do("save", page.kernel_id)["result"]["snapshot_id"]
    page.run("x = 'now'")
    server.do("roll_back", page.kernel_id, snapshot_id=then)
    listed = server.get(f"api/gpuckpt/snapshots?kernel_id={page.kernel_id}")["snapshots"]
    [now] = [entry["snapshot_id"] for entry in listed if entry["cause"] == "rollback"]
    server.do("roll_back", page.kernel_id, snapshot_id=now)
    assert page.run("print(x)") == "now\n"


def test_a_cell_that_is_sent_meanwhile_runs_in_what_was_gone_back_to(server, page):
    page.run("x = 'then'")
    then = server.do("save", page.kernel_id)["result"]["snapshot_id"]
    page.run("x = 'now'")
    operation = server.begin("roll_back", page.kernel_id, snapshot_id=then)
    assert page.run("print(x)") == "then\n"
    assert server.finish(operation)["state"] == "succeeded"


def test_a_rollback_shows_the_progress_of_its_steps_and_is_canceled(server, page, make_listener):
    page.run("x = 'then'")
    then = server.do("save", page.kernel_id)["result"]["snapshot_id"]
    page.run("x = 'now'")
    heard = make_listener("https://events.jupyter.org/jupyter_gpuckpt/kernel/v1").heard
    begun = server.begin("roll_back", page.kernel_id, snapshot_id=then)
    server.request("POST", f"api/gpuckpt/operations/{begun['operation_id']}/cancel")
    ended = server.finish(begun)
    assert (ended["state"], ended["error"]["code"]) == ("cancelled", "operation_cancelled")
    assert page.run("print(x)") == "now\n"
    done = server.do("roll_back", page.kernel_id, snapshot_id=then)
    assert page.run("print(x)") == "then\n"
    seen = [one["operation"] for one in heard if one["operation"]]
    stages = [
        one["progress"]["stage"] for one in seen if one["operation_id"] == done["operation_id"]
    ]
    assert stages.index("capture") < stages.index("restore")


def test_nobody_goes_back_under_a_running_cell_or_to_where_no_way_leads(server, page):
    page.run("x = 1; import time")
    then = server.do("save", page.kernel_id)["result"]["snapshot_id"]
    other = server.open("other.ipynb")
    theirs = server.do("save", other.kernel_id)["result"]["snapshot_id"]
    path = f"kernels/{page.kernel_id}/roll_back"
    status, error = server.refused("POST", path, json={"snapshot_id": theirs})
    assert (status, error["code"]) == (400, "configuration")
    status, _ = server.refused("POST", path, json={"snapshot_id": "none"})
    assert status == 404
    page.execute("time.sleep(1000)")
    wait_until_it_is("busy", server, page)
    status, error = server.refused("POST", path, json={"snapshot_id": then})
    assert status == 409
    assert "interrupt" in error["hint"]
    server.request("POST", f"api/kernels/{page.kernel_id}/interrupt")
    wait_until_it_is("idle", server, page)
    assert page.run("print(x)") == "1\n"


def test_what_changed_since_a_snapshot_is_named(server, page):
    data = server.root / "data.txt"
    data.write_text("before")
    page.run(f"file = open({str(data)!r}); x = 1")
    saved = server.do("save", page.kernel_id)["result"]["snapshot_id"]
    assert server.get(f"api/gpuckpt/snapshots/{saved}/changes") == {"files": [], "obstacles": []}
    data.write_text("and after")
    # The kernel's working directory is open, too, and is no file that changed.
    (server.root / "new.txt").touch()
    changes = server.get(f"api/gpuckpt/snapshots/{saved}/changes")
    assert [(f["path"], f["change"]) for f in changes["files"]] == [(str(data), "changed")]
    assert (changes["files"][0]["length_then"], changes["files"][0]["length_now"]) == (6, 9)


def restart(server, page):
    """Restart a kernel that has changed, and return what is shown of it right after that."""
    server.request("POST", f"api/kernels/{page.kernel_id}/restart")
    return server.kernel(page.kernel_id)


def snapshot_before(server, page):
    """Return the snapshot from before the last restart, which is made in the background."""
    return wait_for(lambda: server.kernel(page.kernel_id)["before_restart"])


def test_a_restart_can_be_undone(server, page, tmp_path):
    data_dir = Path(server.env["JUPYTER_GPUCKPT_DATA_DIR"])
    add_remote(data_dir, "share", f"file://{tmp_path / 'share'}", automatic=False)
    page.run("x = 'before'")
    restart(server, page)
    assert page.run("print('x' in dir())") == "False\n"
    first = snapshot_before(server, page)
    [kept] = server.get(f"api/gpuckpt/snapshots?kernel_id={page.kernel_id}")["snapshots"]
    assert (kept["cause"], kept["snapshot_id"]) == ("restart", first)
    page.run("x = 'after'")
    restart(server, page)
    listing = f"api/gpuckpt/snapshots?kernel_id={page.kernel_id}"
    snapshot_id = snapshot_before(server, page)
    # that of the last restart goes in the background
    wait_for(lambda: len(server.get(listing)["snapshots"]) == 1)
    # No user has deleted the other one, so no remote is told.
    assert UserDeletions(state_folder(data_dir, "share")).all() == {}
    ask(RemoteVerb.REMOVE, data_dir, "share")
    assert [one["snapshot_id"] for one in server.get(listing)["snapshots"]] == [snapshot_id]
    assert page.run("print('x' in dir())") == "False\n"
    server.do("roll_back", page.kernel_id, snapshot_id=snapshot_id)
    assert page.run("print(x)") == "after\n"


def test_restarts_at_once_are_one_restart(server, page):
    """Each would end the process of the other, and the page's sockets would reach none."""
    page.run("x = 'before'")
    path = f"api/kernels/{page.kernel_id}/restart"
    with ThreadPoolExecutor(3) as users:
        answers = list(users.map(lambda _: server.request("POST", path, ok=False), range(3)))
    assert [answer.status_code for answer in answers] == [200] * 3
    assert page.run("print('x' in dir())") == "False\n"
    server.do("roll_back", page.kernel_id, snapshot_id=snapshot_before(server, page))
    assert page.run("print(x)") == "before\n"


#: A process that cannot be saved, so that it is kept until the restart is undone.
UNSAVEABLE = """
import ctypes
libc = ctypes.CDLL(None)
libc.shmat.restype = ctypes.c_void_p
shared = libc.shmget(0, 4096, 0o1600)
libc.shmat(shared, None, 0), libc.shmctl(shared, 0, None)
"""


@pytest.mark.slow
def test_a_restart_is_undone_with_the_process_that_was_kept(server, page):
    """The page's websocket is the same all the time, and the process on which it works, too, in the end."""
    page.run(UNSAVEABLE + "x = [1]; y = id(x)")
    assert restart(server, page)["former_kept"] is True
    assert page.run("print('x' in dir())") == "False\n"
    path = f"api/gpuckpt/kernels/{page.kernel_id}/undo_restart"
    assert server.request("POST", path).json()["former_kept"] is False
    assert page.run("x.append(2); print(x, id(x) == y)") == "[1, 2] True\n"
    assert server.page(page.kernel_id).run("print(x)") == "[1, 2]\n"
    status, error = server.refused("POST", f"kernels/{page.kernel_id}/undo_restart")
    assert (status, error["code"]) == (404, "kernel_not_found")
    # It is a kernel as any other: it can be restarted again, and undone again.
    assert restart(server, page)["former_kept"] is True
    server.request("POST", path)
    assert page.run("print(x)") == "[1, 2]\n"


def test_an_undo_during_the_save_loses_no_variables(server, page):
    """Whether the process is still there, or just saved: one of both ways leads back."""
    page.run(NOISE + "; data = noise(100_000_000); x = len(data)")
    restart(server, page)
    if undone(server, page).status_code == 404:
        snapshot_id = server.kernel(page.kernel_id)["before_restart"]
        server.do("roll_back", page.kernel_id, snapshot_id=snapshot_id)
    assert page.run("print(x, len(data))") == "100000000 100000000\n"


def test_a_cell_that_runs_during_a_restart_goes_on_after_its_undo(server, page):
    page.run(UNSAVEABLE)
    cell = page.execute(
        "import pathlib, time\nwhile not pathlib.Path('go').exists(): time.sleep(0.01)\nx = 'done'"
    )
    restart(server, page)
    assert page.run("print('x' in dir())") == "False\n"
    assert undone(server, page).status_code == 200
    statuses = [m["content"]["execution_state"] for m in page.received if m["msg_type"] == "status"]
    assert statuses[-1] == "busy"
    (server.root / "go").touch()
    page.reply(cell)
    assert page.run("print(x)") == "done\n"


def test_a_restart_is_not_undone_while_the_new_process_runs_a_cell(server, page):
    page.run(UNSAVEABLE + "x = 'before'")
    restart(server, page)
    cell = page.execute(
        "import pathlib, time\nwhile not pathlib.Path('go').exists(): time.sleep(0.01)"
    )
    page.wait_for(lambda m: m["parent_header"].get("msg_id") == cell)
    answer = undone(server, page)
    assert (answer.status_code, answer.json()["code"]) == (409, "kernel_state_conflict")
    (server.root / "go").touch()
    page.reply(cell)
    assert undone(server, page).status_code == 200
    assert page.run("print(x)") == "before\n"


def undone(server, page):
    return server.request("POST", f"api/gpuckpt/kernels/{page.kernel_id}/undo_restart", ok=False)


@pytest.mark.slow
def test_a_restart_of_an_unchanged_kernel_can_be_undone(server, page):
    def before_restart():
        return restart(server, page)["before_restart"]

    assert before_restart() is None
    page.run("x = 'before'")
    saved = server.do("save", page.kernel_id)["result"]["snapshot_id"]
    assert before_restart() == saved
    # Nothing was run in between.
    assert before_restart() == saved
    server.do("roll_back", page.kernel_id, snapshot_id=saved)
    assert page.run("print(x)") == "before\n"
    page.run("x = 'after'")
    before_restart()
    assert snapshot_before(server, page) not in {saved, None}
