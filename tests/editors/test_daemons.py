"""Tests of editors' kernels whose daemon is missing, was killed or has another version: they work, and one line says what they lack."""

import os
import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path

import pytest

from .driving import Desk
from .test_kills import daemon_of
from .test_windows import COUNT, lines


@pytest.fixture
def make_desk(daemon_env, tmp_path):
    """Return a function that makes a desk with a daemon and a relay of its own."""
    made = []

    def make(**others):
        daemon_env.update(others)
        made.append(Desk(daemon_env, tmp_path))
        return made[-1]

    yield make
    for desk in made:
        desk.close()


def works_without_the_engine(desk, reason):
    """Run cells in a new window; fail unless the first says in one line why the kernel cannot be suspended."""
    window = desk.window()
    window.start(desk.spec, desk.notebook("n.ipynb"))
    printed, outputs = window.run("x = 41; print(x + 1)")
    assert printed == "42\n"
    [said] = [text for name, text in outputs if name == "stderr"]
    assert said.count("\n") == 1
    assert "cannot be suspended" in said
    assert reason in said
    assert window.run("print(x)")[0] == "41\n"
    return window


def test_without_an_engine_it_is_an_ordinary_kernel(make_desk, tmp_path):
    works_without_the_engine(make_desk(JUPYTER_GPUCKPT_CRIU=str(tmp_path / "none")), "CRIU")


@pytest.mark.slow
def test_beside_a_daemon_of_another_version_it_is_an_ordinary_kernel(make_desk, tmp_path):
    metadata = tmp_path / "packages" / "jupyter_gpuckpt-0.dist-info" / "METADATA"
    metadata.parent.mkdir(parents=True)
    entry_points = distribution("jupyter_gpuckpt").read_text("entry_points.txt")
    (metadata.parent / "entry_points.txt").write_text(entry_points)
    metadata.write_text("Metadata-Version: 2.1\nName: jupyter_gpuckpt\nVersion: 7.1\n")
    paths = [str(metadata.parent.parent), os.environ.get("PYTHONPATH", "")]
    desk = make_desk(PYTHONPATH=os.pathsep.join(filter(None, paths)))
    before = desk.window()
    before.start(desk.spec, desk.notebook("before.ipynb"))
    before.run("x = 1")
    metadata.write_text("Metadata-Version: 2.1\nName: jupyter_gpuckpt\nVersion: 7.2\n")
    # The relay of the former version serves its editors; the next one meets the former daemon.
    assert before.run("print(x)")[0] == "1\n"
    desk.kill_relay()
    works_without_the_engine(desk, "another version")


@pytest.mark.slow
def test_a_killed_daemon_ends_no_cell(make_desk):
    desk = make_desk()
    window = desk.window()
    window.start(desk.spec, desk.notebook("n.ipynb"))
    window.begin(COUNT.format(count=20, pause=0.05))
    daemon_of(desk).kill()
    assert window.result()[0] == lines(20)
    assert window.run("print(number)")[0] == "19\n"
    # The next daemon has the kernel.
    kernel_id = desk.record_of(desk.folder / "n.ipynb")["kernel_id"]
    desk.command("suspend", kernel_id)
    assert window.run("print(number)")[0] == "19\n"


PAPERMILL = """
import nbformat, papermill
notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("print(6 * 7)")])
notebook.metadata.kernelspec = {{"name": {name!r}, "display_name": "", "language": "python"}}
nbformat.write(notebook, "n.ipynb")
for run in range({runs}):
    done = papermill.execute_notebook("n.ipynb", "out.ipynb", progress_bar=False)
    assert done.cells[0].outputs[0].text == "42\\n", done.cells
"""


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_fifty_runs_of_papermill_leave_no_kernel(make_desk):
    desk = make_desk()
    config = Path(desk.env["JUPYTER_CONFIG_DIR"])
    config.mkdir(exist_ok=True)
    (config / "jupyter_gpuckpt_config.py").write_text("c.GpuCkptRelay.undo_shutdown_for = 0\n")
    program = PAPERMILL.format(name=desk.spec.name, runs=50)
    command = [sys.executable, "-c", program]
    subprocess.run(command, cwd=desk.folder, env=desk.env, check=True)
    assert not desk.records()
    assert not [*(desk.relay_folder / "sessions").iterdir()]
    assert "No kernels" in desk.command("ps")
