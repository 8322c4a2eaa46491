"""The machine of a server goes: its kernels are suspended as it would do it, pages are told, and it may all be a false alarm."""

import subprocess

import pytest

from jupyter_gpuckpt.server.events import kernel_events
from tests.conftest import wait_for
from tests.programs import python_module
from tests.reclaim import doubles


@pytest.fixture
def server(clean_server):
    return clean_server


def notice(server, *arguments):
    command = [*python_module("jupyter_gpuckpt.cli"), "notice", *arguments]
    subprocess.run(command, env=server.env, check=True, stdin=subprocess.DEVNULL)


def states(server):
    return {one["path"]: one["state"] for one in server.get("api/gpuckpt/kernels")["kernels"]}


def test_kernels_are_suspended_by_their_server_and_what_ran_goes_on_if_the_machine_stays(
    server, make_listener, tmp_path
):
    listener = make_listener(kernel_events.NOTICE)
    idle, busy = server.open("idle.ipynb"), server.open("busy.ipynb")
    idle.run("x = 41")
    flag = tmp_path / "flag"
    wait = f"import os, time\nwhile not os.path.exists({str(flag)!r}): time.sleep(0.05)"
    cell = busy.execute(f"{wait}\nprint('done')")
    busy.wait_for(lambda message: message["msg_type"] == "execute_input")
    assert server.get("api/gpuckpt/notices") == {"notices": []}

    notice(server, "--within", "200s", "--disk-survives", "--no-wait")
    wait_for(lambda: listener.heard)
    heard = listener.heard[-1]
    (shown,) = server.get("api/gpuckpt/notices")["notices"]
    for one in (heard, shown):
        assert (one["id"], one["kind"]) == ("requested:hook", "requested")
        assert one["disk_survives"]
        assert one["is_due"]
        assert not one["withdrawn"]
        assert 100 < one["seconds_left"] <= 200
    both = {"idle.ipynb": "suspended", "busy.ipynb": "suspended"}
    wait_for(lambda: states(server) == both)
    assert "suspending 2 kernels" in server.log()
    # The server's suspends know the variables, the daemon's do not.
    (snapshot,) = [
        one
        for one in server.get("api/gpuckpt/snapshots")["snapshots"]
        if one["name"] == "idle.ipynb"
    ]
    assert snapshot["cause"] == "reclaim"
    assert [one["name"] for one in snapshot["variables"]] == ["x"]

    notice(server, "--withdraw")
    wait_for(lambda: listener.heard[-1]["withdrawn"])
    wait_for(lambda: states(server)["busy.ipynb"] == "running")
    flag.touch()
    assert busy.output(cell) == "done\n"
    assert states(server)["idle.ipynb"] == "suspended"
    assert idle.run("print(x)") == "41\n"
    assert server.get("api/gpuckpt/notices") == {"notices": []}


@pytest.fixture
def azure():
    with doubles.serving(doubles.Azure()) as double:
        yield double


@pytest.fixture
def tell(azure, daemon_env):
    """Return a function by which Azure says that this machine goes."""
    daemon_env["JUPYTER_GPUCKPT_RECLAIM_PROVIDER"] = "azure"
    daemon_env["JUPYTER_GPUCKPT_RECLAIM_ENDPOINT"] = azure.url

    def say(within_seconds):
        azure.events.clear()
        azure.announce("told", "Reboot", within_seconds)

    return say


def test_with_time_a_server_saves_its_kernels_first_and_they_run_on(tell, make_server):
    server = make_server()
    server.start()
    page = server.open("a.ipynb")
    page.run("x = 41")

    def snapshots():
        return server.get("api/gpuckpt/snapshots")["snapshots"]

    tell(200)
    wait_for(snapshots)
    (saved,) = snapshots()
    # The server's saves know the variables, the daemon's do not.
    assert [one["name"] for one in saved["variables"]] == ["x"]
    (shown,) = server.get("api/gpuckpt/notices")["notices"]
    assert (shown["is_saving"], shown["is_due"]) == (True, False)
    assert page.run("x += 1; print(x)") == "42\n"
    assert states(server) == {"a.ipynb": "running"}
    tell(25)
    wait_for(lambda: states(server) == {"a.ipynb": "suspended"})
    last, first = snapshots()
    assert (last["cause"], first["snapshot_id"]) == ("reclaim", saved["snapshot_id"])
    page.close()
    server.stop()


@pytest.mark.slow
def test_a_save_that_runs_when_the_machine_goes_sooner_gives_way_to_the_suspend(tell, make_server):
    server = make_server()
    server.start()
    page = server.open("a.ipynb")
    page.run("x = 41")
    page.run("import numpy; held = numpy.random.default_rng(1).bytes(400_000_000)")
    tell(200)
    wait_for(lambda: states(server) == {"a.ipynb": "saving"})
    tell(25)
    wait_for(lambda: states(server) == {"a.ipynb": "suspended"})
    (last,) = server.get("api/gpuckpt/snapshots")["snapshots"]
    assert last["cause"] == "reclaim"
    assert {"held", "x"} <= {one["name"] for one in last["variables"]}
    assert page.run("print(x + 1)") == "42\n"
    page.close()
    server.stop()


@pytest.mark.slow
def test_an_interrupt_does_not_wait_for_a_save_before_the_machine_goes(tell, make_server):
    server = make_server()
    server.start()
    page = server.open("a.ipynb")
    page.run("import numpy, time; held = numpy.random.default_rng(1).bytes(800_000_000)")
    cell = page.execute("try: time.sleep(600)\nexcept KeyboardInterrupt: print('interrupted')")
    page.wait_for(lambda message: message["msg_type"] == "execute_input")
    tell(200)
    wait_for(lambda: states(server) == {"a.ipynb": "saving"})
    server.request("POST", f"api/kernels/{page.kernel_id}/interrupt")
    assert page.output(cell) == "interrupted\n"
    assert server.get("api/gpuckpt/snapshots")["snapshots"] == []
    tell(25)
    wait_for(lambda: states(server) == {"a.ipynb": "suspended"})
    page.close()
    server.stop()
