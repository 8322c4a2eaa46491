"""The magic in a kernel: the agent passes its requests to the server; without one a sentence says what is missing."""

import pytest
from IPython.core.interactiveshell import InteractiveShell

from jupyter_gpuckpt import load_ipython_extension
from jupyter_gpuckpt.client import magics


@pytest.fixture
def server(clean_server):
    return clean_server


def test_the_magic_saves_lists_branches_and_suspends_its_own_kernel(server, eventually):
    page = server.open()
    page.run("x = 41\n%load_ext jupyter_gpuckpt")
    said = page.run("%gpuckpt save before the change")
    assert said.startswith("Saved as snapshot ")
    snapshot_id = said.split()[3].rstrip(";")
    listed = page.run("%gpuckpt sessions")
    assert f"{page.kernel_id}  running" in listed
    assert f"snapshot {snapshot_id}  before the change" in listed
    assert "0 snapshots" in page.run("%gpuckpt branch nothing-like-it")
    # An option is no title: nothing is saved or suspended.
    for verb in ("save", "suspend", "branch"):
        assert page.run(f"%gpuckpt {verb} a title --help").startswith(f"%gpuckpt {verb} [")
    assert page.run("%gpuckpt save --titel typo").startswith("%gpuckpt save [TITLE]: ")
    for line in ("", "--help", "fly"):
        assert magics.HELP in page.run(f"%gpuckpt {line}")
    assert page.run("%gpuckpt sessions") == listed
    page.run("x = 0")
    said = page.run(f"%gpuckpt branch {snapshot_id[:12]}")
    assert "runs beside this one" in said
    branch = server.page(said.split()[1])
    assert branch.run("print(x)") == "41\n"
    assert "is suspended when this cell has ended" in page.run("%gpuckpt suspend for later")
    eventually(lambda: server.kernel(page.kernel_id)["state"] == "suspended")
    assert page.run("x += 1; print(x)") == "1\n"


def test_without_a_server_one_sentence_says_what_is_missing(capsys):
    shell = InteractiveShell()
    load_ipython_extension(shell)
    shell.run_line_magic("gpuckpt", "sessions")
    assert capsys.readouterr().out == f"{magics.MISSING}\n"
