"""Kernels of an editor whose window crashes, reloads, restarts them or closes: nothing that ran is lost, and nothing shown twice."""

import subprocess
import sys

import pytest

from tests.conftest import wait_for

COUNT = "import time\nfor number in range({count}):\n    print('line', number, flush=True)\n    time.sleep({pause})"


def lines(count, first=0):
    return "".join(f"line {number}\n" for number in range(first, count))


def test_a_crash_of_the_editor_in_a_cell_loses_neither_variables_nor_output(desk):
    notebook = desk.notebook("a.ipynb")
    first = desk.window()
    first.start(desk.spec, notebook)
    first.run("x = 41")
    first.begin(COUNT.format(count=20, pause=0.1))
    first.kill_all()
    second = desk.window()
    second.start(desk.spec, notebook)
    printed, outputs = second.run("print(x + 1)")
    assert printed == "42\n"
    assert "`%gpuckpt output` shows it" in outputs[0][1]
    assert second.run("%gpuckpt output")[0] == lines(20)


def test_a_reload_goes_on_and_a_restart_begins_anew(desk):
    notebook = desk.notebook("b.ipynb")
    first = desk.window()
    first.start(desk.spec, notebook)
    first.run("x = 1")
    first.tell("stop")
    first.wait("stopped")
    first.close()
    second = desk.window()
    second.start(desk.spec, notebook)
    assert second.run("print(x)")[0] == "1\n"
    second.tell("restart")
    second.wait("started")
    assert ("error", "NameError") in second.run("x")[1]
    before = next(one for one in desk.records() if one["is_before_restart"])
    assert "before the restart" in second.run(f"%gpuckpt resume {before['session_id']}")[0]
    assert second.run("print(x)")[0] == "1\n"


def test_an_interrupt_ends_the_cell_only(desk):
    window = desk.window()
    window.start(desk.spec, desk.notebook("c.ipynb"))
    window.run("x = 1")
    window.begin(COUNT.format(count=10_000, pause=0.05))
    window.tell("interrupt")
    assert window.result()[1][-1] == ("error", "KeyboardInterrupt")
    window.begin(COUNT.format(count=10_000, pause=0.05))
    window.tell("signal", number=2)
    assert window.result()[1][-1] == ("error", "KeyboardInterrupt")
    assert window.run("print(x)")[0] == "1\n"


def test_a_killed_relay_loses_and_repeats_nothing(desk):
    window = desk.window()
    window.start(desk.spec, desk.notebook("d.ipynb"))
    window.run("x = 1")
    window.begin(COUNT.format(count=40, pause=0.05))
    desk.kill_relay()
    assert window.result()[0] == lines(40)
    assert window.run("print(x)")[0] == "1\n"
    # The next relay repeats the last messages again: the window must take none of them for a forgery.
    desk.kill_relay()
    assert window.run("print(x + 1)")[0] == "2\n"


def test_notebooks_of_one_folder_are_never_mixed(desk):
    one, other = desk.notebook("one.ipynb"), desk.notebook("other.ipynb")
    first = desk.window()
    first.start(desk.spec, one)
    first.run("x = 'one'")
    desk.crash(first, one)
    second = desk.window()
    second.start(desk.spec, other)
    assert ("error", "NameError") in second.run("x")[1]
    second.run("x = 'other'")
    desk.crash(second, other)
    # They change places.
    one.rename(desk.folder / "between.ipynb")
    other.rename(one)
    (desk.folder / "between.ipynb").rename(other)
    third = desk.window()
    third.start(desk.spec, one)
    assert third.run("print(x)")[0] == "other\n"
    fourth = desk.window()
    fourth.start(desk.spec, other)
    assert fourth.run("print(x)")[0] == "one\n"
    desk.crash(third, one)
    # Another file takes the name, and the first one is gone.
    one.unlink()
    desk.notebook("one.ipynb")
    fifth = desk.window()
    fifth.start(desk.spec, one)
    assert ("error", "NameError") in fifth.run("x")[1]


def test_without_a_notebook_nothing_is_brought_back_unless_asked(desk):
    first = desk.window()
    first.start(desk.spec, folder=str(desk.folder))
    first.run("x = 5")
    first.kill_all()
    second = desk.window()
    second.start(desk.spec, folder=str(desk.folder))
    _, outputs = second.run("x")
    assert ("error", "NameError") in outputs
    assert "`%gpuckpt resume`" in outputs[0][1]
    kept = next(
        one for one in desk.records() if one["folder"] == str(desk.folder) and one["left_at"]
    )
    second.run(f"%gpuckpt resume {kept['session_id']}")
    assert second.run("print(x)")[0] == "5\n"


def test_a_question_waits_for_the_next_editor(desk):
    notebook = desk.notebook("e.ipynb")
    first = desk.window()
    first.start(desk.spec, notebook)
    first.begin("print('ask', flush=True)\nname = input('who? ')")
    first.kill_all()
    second = desk.window()
    second.start(desk.spec, notebook)
    second.tell("run", code="print(name)", input_text="me")
    assert second.wait("asked")["prompt"] == "who? "
    assert second.result()[0] == "me\n"


def test_a_shutdown_ends_the_kernel_and_can_be_undone(desk):
    notebook = desk.notebook("f.ipynb")
    first = desk.window()
    first.start(desk.spec, notebook)
    first.run("x = 7")
    kernel = desk.record_of(notebook)
    first.tell("shutdown")
    assert first.wait("shut down")["code"] == 0
    second = desk.window()
    second.start(desk.spec, notebook)
    assert ("error", "NameError") in second.run("x")[1]
    assert "that was shut down" in second.run(f"%gpuckpt resume {kernel['session_id']}")[0]
    assert second.run("print(x)")[0] == "7\n"


@pytest.mark.slow
def test_it_is_suspended_when_idle_and_comes_back(desk):
    notebook = desk.notebook("g.ipynb")
    first = desk.window()
    first.start(desk.spec, notebook)
    first.run("x = list(range(1000))")
    kernel_id = desk.record_of(notebook)["kernel_id"]
    first.begin(COUNT.format(count=3, pause=0.2))
    first.kill_all()
    session = desk.relay_folder / "sessions" / desk.record_of(notebook)["session_id"]
    wait_for(lambda: not (session / "requests").stat().st_size)
    desk.command("suspend", kernel_id)
    second = desk.window()
    second.start(desk.spec, notebook)
    assert second.run("print(len(x))")[0] == "1000\n"
    assert second.run("%gpuckpt output")[0] == lines(3)
    # Suspended with an editor: a cell brings it back, by the same relay.
    relay = desk.relay()
    desk.command("suspend", kernel_id)
    assert second.run("print(len(x))")[0] == "1000\n"
    assert desk.relay() == relay


def test_a_kernel_that_ends_ends_its_program(desk):
    window = desk.window()
    window.start(desk.spec, desk.notebook("h.ipynb"))
    window.tell("run", code="import os; os._exit(3)")
    assert window.wait("ended")["code"] == 3


def test_without_a_relay_it_is_an_ordinary_kernel(desk):
    window = desk.window(JUPYTER_GPUCKPT_DATA_DIR="/dev/null/none")
    window.start(desk.spec, desk.notebook("i.ipynb"))
    assert window.run("import os; print(os.getpid())")[0] == f"{window.pid}\n"


STOCK_CLIENT = """
from traitlets.config import Config
from jupyter_client.manager import start_new_kernel
from jupyter_client.provisioning import KernelProvisionerFactory
config = Config()
config.KernelProvisionerFactory.default_provisioner_name = "gpuckpt-provisioner"
KernelProvisionerFactory.instance(config=config)
manager, client = start_new_kernel(kernel_name={name!r})
client.execute_interactive("import sys; print(sys.argv, flush=True)")
client.stop_channels()
manager.shutdown_kernel(now=True)
"""


def test_our_provisioner_starts_the_kernel_itself(desk):
    program = STOCK_CLIENT.format(name=desk.spec.name)
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env=desk.env, capture_output=True, text=True, check=True)
    assert "ipykernel_launcher.py" in done.stdout
