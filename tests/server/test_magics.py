"""Magics in a kernel: the agent passes them to the server; without one a sentence says what is missing."""

import pytest
from IPython.core.interactiveshell import InteractiveShell

from jupyter_gpuckpt import load_ipython_extension
from jupyter_gpuckpt.client import magics


@pytest.fixture
def server(clean_server):
    return clean_server


def test_magics_save_list_branch_and_suspend_their_own_kernel(server, eventually):
    page = server.open()
    page.run("x = 41\n%load_ext jupyter_gpuckpt")
    said = page.run("%save_session before the change")
    assert said.startswith("Saved as snapshot ")
    snapshot_id = said.split()[3].rstrip(";")
    listed = page.run("%sessions")
    assert f"{page.kernel_id}  running" in listed
    assert f"snapshot {snapshot_id}  before the change" in listed
    assert "0 snapshots" in page.run("%branch nothing-like-it")
    # An option is no title: nothing is saved or suspended.
    for magic in ("save_session", "suspend", "branch"):
        assert f"`%{magic} [" in page.run(f"%{magic} --help")
    assert page.run("%sessions") == listed
    page.run("x = 0")
    said = page.run(f"%branch {snapshot_id[:12]}")
    assert "runs beside this one" in said
    branch = server.page(said.split()[1])
    assert branch.run("print(x)") == "41\n"
    assert "is suspended when this cell has ended" in page.run("%suspend for later")
    eventually(lambda: server.kernel(page.kernel_id)["state"] == "suspended")
    assert page.run("x += 1; print(x)") == "1\n"


def test_without_a_server_one_sentence_says_what_is_missing(capsys):
    shell = InteractiveShell()
    load_ipython_extension(shell)
    shell.run_line_magic("sessions", "")
    assert capsys.readouterr().out == f"{magics.MISSING}\n"
