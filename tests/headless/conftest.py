"""One daemon for the runs of a module, each with a folder of its own."""

import pytest

from .running import CELLS, Runner, write_notebook


@pytest.fixture
def runner(module_daemon_env, tmp_path):
    """Return a runner of a notebook that waits at its gates; nothing of it is left afterwards."""
    notebook = write_notebook(tmp_path / "notebook.ipynb", CELLS)
    made = Runner(module_daemon_env, notebook, tmp_path / "out.ipynb")
    yield made
    if made.process is not None:
        made.kill()
        made.forget_everything()
