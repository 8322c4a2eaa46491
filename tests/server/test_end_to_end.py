"""A notebook's life over suspends, resumes and server restarts, as a page sees it."""

import os
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

from jupyter_gpuckpt.client import Client
from jupyter_gpuckpt.wire import calls
from tests.conftest import processes_naming, wait_for
from tests.ports import free_port


@pytest.fixture
def server(clean_server):
    return clean_server


def test_a_kernel_is_managed_and_runs_cells(server):
    page = server.open()
    assert page.run("x = 6 * 7\nprint(x)") == "42\n"
    kernel = server.kernel(page.kernel_id)
    expected = {
        "kernel_id": page.kernel_id,
        "state": "running",
        "managed": True,
        "reason": None,
        "hint": None,
        "snapshot_id": None,
        "operation": None,
    }
    assert kernel == {**kernel, **expected}
    (listed,) = server.get("api/gpuckpt/kernels")["kernels"]
    assert listed == {**listed, **expected}
    assert set(listed) == set(kernel)


def test_a_save_leaves_the_kernel_running_and_is_listed(server):
    page = server.open("folder-notebook.ipynb")
    page.run("x = 1")
    operation = server.do("save", page.kernel_id)
    assert operation["kind"] == "save"
    assert operation["result"]["raw_bytes"] > 1_000_000
    assert page.run("print(x)") == "1\n"
    [snapshot] = server.get(f"api/gpuckpt/snapshots?kernel_id={page.kernel_id}")["snapshots"]
    assert snapshot["snapshot_id"] == operation["result"]["snapshot_id"]
    assert (snapshot["reason"], snapshot["name"]) == ("save", "folder-notebook.ipynb")
    assert server.kernel(page.kernel_id)["snapshot_id"] == snapshot["snapshot_id"]
    summary = server.request("GET", f"api/gpuckpt/snapshots/{snapshot['snapshot_id']}").text
    assert "connection_info" not in summary
    server.request("DELETE", f"api/gpuckpt/snapshots/{snapshot['snapshot_id']}")
    assert server.get("api/gpuckpt/snapshots") == {"snapshots": []}


def test_a_suspended_kernel_keeps_its_state_and_its_open_page_also_over_an_interrupt(server):
    page = server.open()
    page.run("x = 41")
    server.do("suspend", page.kernel_id)
    assert server.kernel(page.kernel_id)["state"] == "suspended"
    assert server.get("api/kernels")[0]["execution_state"] == "suspended"
    # There is nothing to interrupt.
    server.request("POST", f"api/kernels/{page.kernel_id}/interrupt")
    server.do("resume", page.kernel_id)
    assert server.kernel(page.kernel_id)["state"] == "running"
    assert server.get("api/kernels")[0]["execution_state"] == "idle"
    assert page.run("print(x + 1)") == "42\n"


def test_nothing_restarts_a_suspended_kernel(server):
    page, other = server.open(), server.open("other.ipynb")
    server.do("suspend", page.kernel_id)
    # All are looked at equally often, so this one was, too, when another one that died has been restarted twice.
    for _ in range(2):
        other.execute("import os; os._exit(1)")
        other.wait_for(lambda m: m["content"].get("execution_state") == "restarting")
        other = server.page(other.kernel_id)
        assert other.run("print(1)") == "1\n"
    assert server.kernel(page.kernel_id)["state"] == "suspended"
    assert not [m for m in page.received if m["content"].get("execution_state") == "restarting"]


def test_cells_sent_to_a_suspended_kernel_run_in_order_after_the_resume(server):
    page = server.open()
    page.run("said = []")
    server.do("suspend", page.kernel_id)
    ids = [page.execute(f"said.append({i}); print(said)") for i in range(5)]
    server.bring_back(page.kernel_id)
    assert page.output(ids[-1]) == "[0, 1, 2, 3, 4]\n"
    assert page.output(ids[0]) == "[0]\n"


# Pages of both protocols look at a suspended kernel in the tests of what wakes one, too.
@pytest.mark.parametrize("binary", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_page_opened_on_a_suspended_kernel_wakes_nothing_and_is_told_idle(server, binary):
    first = server.open(binary=binary)
    first.run("x = 1")
    kernel_session = first.received[-1]["header"]["session"]
    server.do("suspend", first.kernel_id)
    first.close()
    began = time.monotonic()
    page = server.page(first.kernel_id, binary=binary)
    info = page.reply(page.send("kernel_info_request", {}))
    assert (
        time.monotonic() - began < 50
    )  # Jupyter would ask a kernel that does not answer for a minute
    assert info["content"]["implementation"] == "ipython"
    assert info["header"]["session"] == kernel_session
    comms = page.reply(page.send("comm_info_request", {}))
    assert comms["content"] == {"status": "ok", "comms": {}}
    page.wait_for(
        lambda m: m["content"].get("execution_state") == "idle" and not m["parent_header"]
    )
    page.send("history_request", {"hist_access_type": "tail", "n": 1, "raw": True, "output": False})
    time.sleep(1)
    states = {m["content"].get("execution_state") for m in page.received}
    assert states <= {None, "idle", "busy"}
    assert server.kernel(first.kernel_id)["state"] == "suspended"
    server.do("resume", first.kernel_id)
    assert page.run("print(x)") == "1\n"
    page.wait_for(lambda m: m["msg_type"] == "history_reply")


def test_no_output_is_lost_right_after_a_resume(server):
    pages = [server.open()]
    pages += [server.page(pages[0].kernel_id) for _ in range(3)]
    for _ in range(2):
        server.do("suspend", pages[0].kernel_id)
        server.do("resume", pages[0].kernel_id)
        request = pages[0].execute("print('here')")
        for page in pages:
            page.wait_for(
                lambda m, request=request: (
                    m["msg_type"] == "stream" and m["parent_header"].get("msg_id") == request
                )
            )


def test_cells_sent_around_a_save_are_neither_lost_nor_doubled(server):
    page = server.open()
    page.run("count = 0")
    operation = server.begin("save", page.kernel_id)
    ids = [page.execute("count += 1") for _ in range(50)]
    assert server.finish(operation)["state"] == "succeeded"
    page.reply(ids[-1])
    assert page.run("print(count)") == "50\n"


def test_a_save_in_the_middle_of_a_plot_leaves_one_whole_figure_and_runs_no_hook(server):
    page = server.open()
    page.run("%matplotlib inline")
    page.run("import pathlib, time, matplotlib.pyplot as plt; hooks = []")
    page.run("get_ipython().events.register('post_execute', lambda: hooks.append(1))")
    before = int(page.run("print(len(hooks))"))
    plot = page.execute(
        "plt.plot([1, 2]); pathlib.Path('begun').touch()\n"
        "while not pathlib.Path('go').exists(): time.sleep(0.01)\n"
        "lines = plt.plot([2, 1]); print(len(plt.gca().lines))"
    )
    wait_for((server.root / "begun").exists)
    server.do("save", page.kernel_id)
    (server.root / "go").touch()
    assert page.output(plot) == "2\n"
    figures = [m for m in page.received if "image/png" in m["content"].get("data", {})]
    assert [m["parent_header"]["msg_id"] for m in figures] == [plot]
    # One for the cell that asked, one for the plot.
    assert int(page.run("print(len(hooks))")) == before + 2


def test_cells_sent_around_a_suspend_are_neither_lost_nor_doubled(server):
    page = server.open(binary=True)
    page.run("count = 0")
    sent = []
    for _ in range(2):
        sending = threading.Thread(
            target=lambda: sent.extend(page.execute("count += 1") for _ in range(40))
        )
        sending.start()
        operation = server.begin("suspend", page.kernel_id)
        sending.join()
        assert server.finish(operation)["state"] == "succeeded", operation
        server.bring_back(page.kernel_id)
    page.reply(sent[-1])
    assert page.run("print(count)") == "80\n"


def test_an_interrupt_by_message_does_not_hit_the_cell_after_the_resume(server):
    folder = Path(server.env["JUPYTER_DATA_DIR"]) / "kernels" / "by-message"
    folder.mkdir(parents=True)
    (folder / "kernel.json").write_text(
        '{"argv": ["python", "-m", "ipykernel_launcher", "-f", "{connection_file}"], '
        '"display_name": "By message", "language": "python", "interrupt_mode": "message"}'
    )
    page = server.open(kernel="by-message")
    page.run("x = 1")
    server.do("suspend", page.kernel_id)
    server.request("POST", f"api/kernels/{page.kernel_id}/interrupt")
    server.do("resume", page.kernel_id)
    assert page.run("import time; time.sleep(1); print(x)") == "1\n"


def test_a_restart_forgets_the_cells_that_waited(server):
    page = server.open()
    # More than once: what a new kernel says before a page has subscribed again is lost now and then, not every time.
    for _ in range(2):
        server.do("suspend", page.kernel_id)
        page.execute("x = 'waited'")
        # Answered in the kernel's place, so what was sent before is held by now.
        page.reply(page.send("kernel_info_request", {}))
        server.request("POST", f"api/kernels/{page.kernel_id}/restart")
        assert page.run("print('x' in globals())") == "False\n"


@pytest.mark.parametrize(
    "how",
    [
        signal.SIGTERM,
        pytest.param(signal.SIGINT, marks=pytest.mark.slow),
        pytest.param(signal.SIGHUP, marks=pytest.mark.slow),
        None,
    ],
)
def test_a_stopped_server_suspends_and_the_next_one_lists_the_same_session(server, how):
    page = server.open("notebook.ipynb")
    page.run("x = 41")
    server.stop(how)
    server.start()
    [session] = server.get("api/sessions")
    assert (session["id"], session["path"]) == (page.session_id, "notebook.ipynb")
    assert session["kernel"]["id"] == page.kernel_id
    assert session["kernel"]["execution_state"] == "suspended"
    assert server.kernel(page.kernel_id)["state"] == "suspended"
    again = server.page(page.kernel_id)
    server.do("resume", page.kernel_id)
    assert again.run("x += 1; print(x)") == "42\n"
    assert again.reply(again.execute("x"))["content"]["execution_count"] == 3


def test_a_second_signal_does_not_disturb_the_stop(server):
    page = server.open()
    page.run("x = 1")
    server.process.send_signal(signal.SIGTERM)
    time.sleep(0.1)
    server.stop(signal.SIGTERM)
    server.start()
    assert server.kernel(page.kernel_id)["state"] == "suspended"


def test_a_killed_server_leaves_its_kernels_running_for_the_next_under_their_present_names(server):
    page = server.open("old.ipynb")
    page.run("x = 41")
    body = {"path": "new.ipynb", "name": "new.ipynb"}
    server.request("PATCH", f"api/sessions/{page.session_id}", json=body)
    record = Path(
        server.env["JUPYTER_GPUCKPT_DATA_DIR"], "state/kernels", page.kernel_id, "record.json"
    )
    wait_for(lambda: "new.ipynb" in record.read_text())
    server.kill()
    server.start()
    [session] = server.get("api/sessions")
    assert (session["id"], session["kernel"]["id"]) == (page.session_id, page.kernel_id)
    assert session["path"] == "new.ipynb"
    assert server.kernel(page.kernel_id)["state"] == "running"
    assert server.page(page.kernel_id).run("print(x + 1)") == "42\n"
    wait_for(lambda: server.get("api/kernels")[0]["execution_state"] == "idle")


def mounts_of(pid):
    with suppress(OSError):
        return Path(f"/proc/{pid}/mounts").read_text()
    return ""


@pytest.mark.slow
def test_a_kernel_that_looks_for_servers_finds_this_one_and_removes_no_file(own_server, tmp_path):
    page = own_server.open()
    page.run("from jupyter_server.serverapp import list_running_servers")
    look = "print(sorted(server['port'] for server in list_running_servers()))"
    assert page.run(look) == f"[{own_server.port}]\n"
    own_server.stop()
    own_server.port = free_port()
    own_server.start()
    again = own_server.page(page.kernel_id)
    own_server.do("resume", page.kernel_id)
    assert again.run(look) == f"[{own_server.port}]\n"
    own_server.kill()
    own_server.port = free_port()
    own_server.start()
    # The kernel runs on under a server whose file was not there when it came back; that is seen to within seconds.
    # A look before that would remove the file.
    file = f"jpserver-{own_server.process.pid}.json"
    wait_for(lambda: any(file in mounts_of(pid) for pid in processes_naming(page.kernel_id)))
    assert f"{own_server.port}" in own_server.page(page.kernel_id).run(look)
    runtime = Path(own_server.env["JUPYTER_RUNTIME_DIR"])
    assert (runtime / f"jpserver-{own_server.process.pid}.json").exists()


def test_a_server_of_a_directory_below_lists_the_path_below_it(own_server, make_server):
    (own_server.root / "below").mkdir()
    page = own_server.open("below/notebook.ipynb")
    own_server.stop()
    other = make_server()
    other.root = own_server.root / "below"
    other.start()
    [session] = other.get("api/sessions")
    assert (session["id"], session["path"]) == (page.session_id, "notebook.ipynb")


def test_a_kernel_comes_back_without_its_kernelspec(server):
    specs = Path(server.env["JUPYTER_DATA_DIR"]) / "kernels" / "passing"
    specs.mkdir(parents=True)
    (specs / "kernel.json").write_text(
        '{"argv": ["python", "-m", "ipykernel_launcher", "-f", "{connection_file}"], '
        '"display_name": "Passing", "language": "python"}'
    )
    page = server.open(kernel="passing")
    page.run("x = 1")
    server.stop()
    (specs / "kernel.json").unlink()
    server.start()
    server.do("resume", page.kernel_id)
    assert server.page(page.kernel_id).run("print(x)") == "1\n"


@pytest.mark.slow  # a restart of a suspended kernel, and a suspended kernel under the next server, are tested above
def test_a_restart_of_a_suspended_kernel_gives_an_empty_one_under_the_next_server(server):
    page = server.open()
    page.run("x = 1")
    server.do("suspend", page.kernel_id)
    server.stop()
    server.start()
    server.request("POST", f"api/kernels/{page.kernel_id}/restart")
    assert server.kernel(page.kernel_id)["state"] == "running"
    assert server.page(page.kernel_id).run("print('x' in globals())") == "False\n"


def test_a_suspended_kernel_is_shut_down_at_once_and_for_good(server_with):
    # Of a kernel that does not end when it is asked to, Jupyter waits for half of that.
    waits = "--KernelManager.shutdown_wait_time=400"
    server = server_with(waits)
    page = server.open()
    server.do("suspend", page.kernel_id)
    began = time.monotonic()
    server.request("DELETE", f"api/sessions/{page.session_id}")
    assert time.monotonic() - began < 100
    assert server.get("api/kernels") == []
    server.stop()
    server.start()
    assert server.get("api/kernels") == []
    assert len(server.get("api/gpuckpt/snapshots")["snapshots"]) == 1


def test_a_kernel_that_crashes_is_restarted_as_ever(server):
    page = server.open()
    page.run("x = 1")
    page.execute("import os; os._exit(1)")
    page.wait_for(lambda m: m["content"].get("execution_state") == "restarting")
    page = server.page(page.kernel_id)
    assert page.run("print('x' in globals())") == "False\n"
    server.do("suspend", page.kernel_id)
    server.do("resume", page.kernel_id)
    assert page.run("print(1)") == "1\n"


def test_a_resume_from_an_older_snapshot_goes_back(server):
    page = server.open()
    page.run("x = 1")
    older = server.do("save", page.kernel_id)["result"]["snapshot_id"]
    page.run("x = 2")
    server.do("suspend", page.kernel_id)
    server.do("resume", page.kernel_id, snapshot_id=older)
    # IPython may add that its history went on without it.
    assert page.run("print(x)").startswith("1\n")


def test_a_daemon_that_is_killed_is_replaced_and_nothing_is_lost(server, monkeypatch):
    page = server.open()
    page.run("x = 1")
    for name, value in server.env.items():
        monkeypatch.setenv(name, value)
    with Client.connect() as client:
        os.kill(client.send(calls.handshake()).pid, signal.SIGKILL)
    assert page.run("print(x)") == "1\n"
    server.do("suspend", page.kernel_id)
    server.do("resume", page.kernel_id)
    assert page.run("print(x)") == "1\n"
