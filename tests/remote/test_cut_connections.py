"""A connection that is cut while a remote gets its key costs neither the key nor the words of its recovery phrase."""

from __future__ import annotations

import io
import re
import secrets

import pytest

from jupyter_gpuckpt.cli import app
from tests.remote import interfering, servers
from tests.remote.interfering import Refusal


@pytest.fixture
def cut_after(seaweedfs, monkeypatch):
    """Yield a remote, and the list of methods and parts of paths: after the first such request no other is answered."""
    for name, value in servers.s3_variables().items():
        monkeypatch.setenv(name, value)
    wanted, cut = [], []

    def refuse(asked):
        if cut:
            return Refusal(503, "SlowDown")
        if any(asked.method == method and part in asked.path for method, part in wanted):
            cut.append(asked)
        return None

    with interfering.before(seaweedfs, refuse) as url:
        yield servers.s3_remote(url, f"p{secrets.token_hex(6)}"), wanted, cut


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Return a function that runs `jupyter gpuckpt remote` on a machine; its status and what it said."""

    def remote(machine, *words, typed=""):
        monkeypatch.setenv("JUPYTER_GPUCKPT_DATA_DIR", str(tmp_path / machine))
        monkeypatch.setattr("sys.stdin", io.StringIO(typed))
        capsys.readouterr()
        status = app.main(["remote", *words])
        return status, "".join(capsys.readouterr())

    return remote


def test_a_cut_connection_does_not_hide_the_recovery_phrase(cut_after, run, tmp_path):
    remote, wanted, cut = cut_after
    where = [remote.url, *(f"--set={key}={value}" for key, value in remote.settings.items())]
    wanted.append(("PUT", "/keyring"))
    status, said = run("a", "add", "far", *where)
    assert status == 7
    assert "repeat the command" in said
    words = phrase_in(said)
    key = (tmp_path / "a/keys/far.key").read_text()
    wanted.clear()
    cut.clear()
    # Repeated, with the key that was made.
    assert run("a", "add", "far", *where)[0] == 0
    assert (tmp_path / "a/keys/far.key").read_text() == key
    opening = ["add", "far", *where, "--recovery-phrase"]
    assert run("b", *opening, typed=words + "\n")[0] == 0

    wanted.append(("PUT", "/keyring"))
    status, said = run("a", "key", "far", "--rekey", "--yes")
    assert status == 7
    newer = phrase_in(said)
    assert newer != words
    wanted.clear()
    cut.clear()
    assert run("c", *opening, typed=words + "\n")[0] == 7
    assert run("c", *opening, typed=newer + "\n")[0] == 0
    # This machine still gets in, and the repeated command succeeds.
    assert run("a", "key", "far", "--rekey", "--yes")[0] == 0
    assert run("a", "key", "far")[0] == 0


def phrase_in(said):
    """Return the recovery phrase in a command's output."""
    return " ".join(re.search(r"valid unless[^:]*: ((?:[a-z]+\s+){23}[a-z]+)", said)[1].split())
