"""Connections that are cut while the key of a remote is written: no machine loses its access."""

from __future__ import annotations

import io
import json
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


@pytest.mark.slow
def test_a_cut_connection_costs_no_machine_its_key(cut_after, run, tmp_path):
    """Each change is written, but the answer is lost."""
    remote, wanted, cut = cut_after
    settings = [f"--set={key}={value}" for key, value in remote.settings.items()]

    def cut_at_the_key(*words, typed=""):
        wanted.append(("PUT", "/key"))
        assert run(*words, typed=typed)[0] == 7
        wanted.clear()
        cut.clear()

    cut_at_the_key("a", "create", "offsite", remote.url, *settings)
    key = (tmp_path / "a/keys/offsite.key").read_text()
    # It was created, and the key file that was made opens it.
    assert run("a", "create", "offsite", remote.url, *settings)[0] == 2
    assert run("a", "add", "offsite", remote.url, *settings)[0] == 0
    assert (tmp_path / "a/keys/offsite.key").read_text() == key
    line = json.loads(run("a", "key", "code", "offsite", "--json")[1])["line"]

    cut_at_the_key("b", "add", "offsite", *settings, typed=line)
    assert run("b", "add", "offsite", *settings, typed=line)[0] == 0
    entries = json.loads(run("b", "key", "list", "offsite", "--json")[1])["entries"]
    assert [one["kind"] for one in entries].count("key file") == 2, entries

    cut_at_the_key("a", "key", "rotate", "offsite", "--yes")
    newer = json.loads(run("a", "key", "rotate", "offsite", "--yes", "--json")[1])["line"]
    assert run("c", "add", "offsite", *settings, typed=line)[0] == 7
    assert run("c", "add", "offsite", *settings, typed=newer)[0] == 0
