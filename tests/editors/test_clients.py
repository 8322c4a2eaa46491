"""Other clients with the kernel that an editor would choose."""

import subprocess
import sys

import nbformat
import pytest

from tests.conftest import wait_for

pytestmark = pytest.mark.slow

NBCLIENT = """
import sys, nbformat
from nbclient import NotebookClient
notebook = nbformat.read({path!r}, 4)
NotebookClient(notebook, kernel_name={name!r}).execute()
print(notebook.cells[0].outputs[0].text)
"""
RESTART = """
from jupyter_client.manager import start_new_kernel
manager, client = start_new_kernel(kernel_name={name!r})
client.execute_interactive("x = 1; print('one', flush=True)")
manager.restart_kernel()
client.wait_for_ready(timeout=90)
client.execute_interactive("print('x' in globals(), flush=True)")
client.stop_channels()
manager.shutdown_kernel()
"""


def run(desk, program):
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env=desk.env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def ends(desk):
    """Wait until every kernel that was shut down has ended for good."""
    wait_for(lambda: not [one for one in desk.records() if one["ends_at"]])


def test_nbclient_leaves_no_kernel(desk):
    path = str(desk.folder / "n.ipynb")
    cell = nbformat.v4.new_code_cell("print(6 * 7)")
    nbformat.write(nbformat.v4.new_notebook(cells=[cell]), path)
    for _ in range(3):
        assert run(desk, NBCLIENT.format(path=path, name=desk.spec.name)) == "42\n\n"
    ends(desk)
    assert not desk.records()


def test_a_restart_by_jupyter_client_gives_a_new_kernel(desk):
    assert run(desk, RESTART.format(name=desk.spec.name)).splitlines()[-1] == "False"
    ends(desk)
    assert [one["is_before_restart"] for one in desk.records()] == [True]


def test_jupyter_console_runs_cells_and_ends_its_kernel(desk):
    command = [sys.executable, "-m", "jupyter_console", "--simple-prompt", "--kernel"]
    done = subprocess.run(
        [*command, desk.spec.name],
        env=desk.env,
        input="print(6 * 7)\nexit\n",
        capture_output=True,
        text=True,
        check=False,
    )
    assert "42" in done.stdout, (done.stdout, done.stderr)
