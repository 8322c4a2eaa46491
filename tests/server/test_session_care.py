"""What a resumed kernel needs beside its memory: history, the new server's environment, and calls of functions of its user."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

CONNECTED = """
import sqlite3
def close(): global connection; connection.close(); connection = None
def reopen(): global connection; connection = sqlite3.connect({path!r})
reopen()
get_ipython().events.register("on_save", close)
get_ipython().events.register("on_resume", reopen)
"""


@pytest.fixture
def server(clean_server):
    return clean_server


def history(page):
    path = Path(page.run("print(get_ipython().history_manager.hist_file)").strip())
    return path, written(path)


def written(path):
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute("SELECT session, line, source_raw FROM history").fetchall()


def test_on_save_and_on_resume_are_called_around_a_suspend(server, tmp_path):
    page = server.open()
    path = str(tmp_path / "data.sqlite")
    page.run(CONNECTED.format(path=path))
    page.run("connection.execute('CREATE TABLE t (x)')")
    page.run("import os; seen = []")
    page.run("get_ipython().events.register('on_save', lambda: seen.append(connection is None))")
    server.do("suspend", page.kernel_id)
    # The file may change meanwhile: nobody has it open.
    with sqlite3.connect(path) as connection:
        connection.execute("INSERT INTO t VALUES (42)")
    assert page.run("print(seen, connection.execute('SELECT x FROM t').fetchall())") == (
        "[True] [(42,)]\n"
    )


def test_after_a_save_on_resume_comes_before_the_next_cell(server, tmp_path):
    page = server.open()
    page.run(CONNECTED.format(path=str(tmp_path / "data.sqlite")))
    for _ in range(3):
        operation = server.begin("save", page.kernel_id)
        assert page.run("print(connection is None)") == "False\n"
        server.finish(operation)


def test_a_running_cell_is_not_disturbed_and_on_resume_follows_it(server):
    page = server.open()
    page.run("calls = []")
    for event in ("on_save", "on_resume"):
        page.run(f"get_ipython().events.register({event!r}, lambda: calls.append({event!r}))")
    code = "import os, time\nwhile not os.path.exists('go'): time.sleep(0.01)\nprint(calls)"
    request = page.execute(code)
    page.wait_for(
        lambda m: m["msg_type"] == "execute_input" and m["parent_header"].get("msg_id") == request
    )
    server.do("suspend", page.kernel_id)
    server.do("resume", page.kernel_id)
    (server.root / "go").touch()
    assert page.output(request) == "[]\n"
    assert page.run("print(calls)") == "['on_resume']\n"


def test_one_that_fails_says_so_and_keeps_nothing_from_going_on(server):
    page = server.open()
    page.run("def broken(): raise RuntimeError('not now')")
    page.run("get_ipython().events.register('on_save', broken)")
    server.do("suspend", page.kernel_id)
    assert page.run("print(1)") == "1\n"
    errors = [m for m in page.received if m["msg_type"] == "error"]
    assert [m["content"]["evalue"] for m in errors] == ["not now"]


def test_history_goes_on_whatever_snapshot_is_resumed(server, eventually):
    page = server.open()
    page.run("x = 'before'")
    older = server.do("save", page.kernel_id)["result"]["snapshot_id"]
    for number in range(3):
        page.run(f"x = {number}")
    for number in range(2):
        server.do("suspend", page.kernel_id)
        server.do("resume", page.kernel_id, snapshot_id=older)
        assert page.run(f"print(x, 'again {number}')") == f"before again {number}\n"
    path, _ = history(page)
    expected = ["x = 0", "x = 1", "x = 2", "print(x, 'again 0')", "print(x, 'again 1')"]
    eventually(lambda: [source for *_, source in written(path) if source in expected] == expected)


def test_a_history_that_is_gone_keeps_no_kernel_from_coming_back(server, eventually):
    page = server.open()
    page.run("x = 1")
    path, _ = history(page)
    page.run("x = 2 - 1")
    # IPython writes in a thread, which complains on the page if it is frozen in the middle of that.
    eventually(lambda: "x = 2 - 1" in [source for *_, source in written(path)])
    server.do("suspend", page.kernel_id)
    for left in path.parent.glob("history.sqlite*"):
        left.unlink()
    assert page.run("print(x)").startswith("1")
    assert page.run("print(x + 1)").startswith("2")


def test_a_kernel_gets_the_variables_of_the_server_that_it_comes_back_under(make_server):
    names = ("JUPYTERHUB_API_TOKEN", "JUPYTERHUB_SERVER_NAME", "JPY_API_TOKEN")
    told = f"import os; print([os.environ.get(name) for name in {names!r}])"
    first = {"JUPYTERHUB_SERVER_NAME": "old", "JPY_API_TOKEN": "first"}
    server = make_server(env=first).start()
    page = server.open()
    assert page.run(told) == "[None, 'old', 'first']\n"
    server.stop()
    server.env = {key: value for key, value in server.env.items() if key not in first}
    server.env |= {"JUPYTERHUB_API_TOKEN": "new", "JPY_API_TOKEN": "second"}
    server.start()
    page = server.page(page.kernel_id)
    assert page.run(told) == "['new', None, 'second']\n"
    assert page.run("print(os.environ['JPY_PARENT_PID'])") == "1\n"
    name = page.run("print(os.environ['JPY_SESSION_NAME'])").strip()
    assert name == str(server.root / "notebook.ipynb")


def test_which_variables_are_a_servers_can_be_said(make_server):
    options = [f"--GpuCkptServer.renewed_variables={name}" for name in ("CLUSTER_*", "SEAT")]
    gpus = "CUDA_VISIBLE_DEVICES"
    first = {"CLUSTER_NAME": "a", "CLUSTER_OLD": "b", "JPY_X": "c", gpus: "0,1"}
    server = make_server(*options, env=first).start()
    page = server.open()
    names = ("CLUSTER_NAME", "CLUSTER_OLD", "SEAT", "JPY_X", gpus)
    told = f"import os; print([os.environ.get(name) for name in {names!r}])"
    assert page.run(told) == "['a', 'b', None, 'c', '0,1']\n"
    server.stop()
    del server.env["CLUSTER_OLD"]
    server.env |= {"CLUSTER_NAME": "d", "SEAT": "4", "JPY_X": "e", gpus: "2,3"}
    server.start()
    assert server.page(page.kernel_id).run(told) == "['d', None, '4', 'c', '2,3']\n"
