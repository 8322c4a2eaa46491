"""`jupyter gpuckpt remote` tries a bucket out before it is remembered, and never repeats a secret."""

from __future__ import annotations

import io
import json
import re
import stat

import pytest

from jupyter_gpuckpt.cli import app


@pytest.fixture
def data_dir(tmp_path, monkeypatch):
    monkeypatch.setenv("JUPYTER_GPUCKPT_DATA_DIR", str(tmp_path / "data"))
    return tmp_path / "data"


def test_a_folder_is_added_tested_listed_and_forgotten(data_dir, tmp_path, capsys):
    url = f"file://{tmp_path}/share"
    assert app.main(["remote", "add", "share", url, "--upload-rate", "20M"]) == 0
    out, err = capsys.readouterr()
    assert re.search("creates objects without overwriting +yes", out)
    assert "only this machine may write" in err
    assert "Recovery phrase:" in out
    assert app.main(["remote", "list", "--json"]) == 0
    [found] = json.loads(capsys.readouterr().out)["remotes"]
    assert found["remote"]["url"] == url
    assert found["remote"]["upload_rate"] == 20_000_000
    assert found["remote"]["capabilities"]["compare_and_swap"] is False
    assert app.main(["remote", "test", "share"]) == 0
    capsys.readouterr()
    assert app.main(["remote", "list"]) == 0
    assert "usable, 1 warning" in capsys.readouterr().out
    assert app.main(["remote", "rm", "share"]) == 0
    capsys.readouterr()
    assert app.main(["remote", "list"]) == 0
    assert capsys.readouterr().out == "No remotes.\n"


def test_what_cannot_be_tried_is_not_added(data_dir, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert app.main(["remote", "add", "share", f"file://{tmp_path}/file/below"]) != 0
    capsys.readouterr()
    assert app.main(["remote", "list", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"remotes": []}


@pytest.mark.parametrize(
    "words",
    [
        ["s3://KEY:hunter2@bucket/prefix"],
        ["s3://bucket", "--set", "hunter2"],
        ["s3://bucket", "--set", "secret_access_key=hunter2"],
    ],
)
def test_a_secret_that_was_typed_is_refused_and_not_repeated(data_dir, words, capsys):
    assert app.main(["remote", "add", "one", *words]) == 2
    out, err = capsys.readouterr()
    assert "hunter2" not in out + err
    assert not (data_dir / "remotes.json").exists()


def test_a_remote_that_is_not_there_is_named(data_dir, capsys):
    assert app.main(["remote", "test", "none", "--json"]) == 2
    assert "There is no remote 'none'" in json.loads(capsys.readouterr().out)["error"]["message"]


def test_a_second_machine_gets_in_by_the_recovery_phrase(data_dir, tmp_path, capsys, monkeypatch):
    url = f"file://{tmp_path}/share"
    assert app.main(["remote", "add", "share", url, "--json"]) == 0
    phrase = json.loads(capsys.readouterr().out)["recovery_phrase"]
    key = data_dir / "keys/share.key"
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert phrase not in (data_dir / "remotes.json").read_text()
    assert key.read_text().strip() not in (data_dir / "remotes.json").read_text()

    monkeypatch.setenv("JUPYTER_GPUCKPT_DATA_DIR", str(tmp_path / "second"))
    assert app.main(["remote", "add", "share", url]) == 7
    assert "has no key" in capsys.readouterr().err
    assert not (tmp_path / "second/keys/share.key").exists()
    monkeypatch.setattr("sys.stdin", io.StringIO(phrase + "\n"))
    assert app.main(["remote", "add", "share", url, "--recovery-phrase"]) == 0
    assert "Recovery phrase:" not in capsys.readouterr().out

    monkeypatch.setattr("sys.stdin", io.StringIO("correct horse battery staple\n"))
    words = ["remote", "key", "share", "--add-passphrase", "--label", "me", "--json"]
    assert app.main(words) == 0
    holders = json.loads(capsys.readouterr().out)["holders"]
    assert [one["kind"] for one in holders] == ["file", "recovery", "file", "passphrase"]
    assert [one["here"] for one in holders] == [False, False, True, False]
    assert app.main(["remote", "key", "share", "--remove", holders[0]["holder_id"]]) == 0

    monkeypatch.setenv("JUPYTER_GPUCKPT_DATA_DIR", str(data_dir))
    capsys.readouterr()
    assert app.main(["remote", "key", "share"]) == 7
    assert "removed" in capsys.readouterr().err


def test_a_command_gives_the_key_and_what_it_printed_is_not_repeated(data_dir, tmp_path, capsys):
    secret = tmp_path / "secret"
    secret.write_text("0123456789abcdef0123456789abcdef\n")
    url = f"file://{tmp_path}/share"
    assert app.main(["remote", "add", "share", url, "--key-command", f"cat {secret}"]) == 0
    capsys.readouterr()
    assert app.main(["remote", "key", "share", "--rekey"]) == 6
    assert app.main(["remote", "key", "share", "--rekey", "--yes", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert [one["kind"] for one in answer["holders"]] == ["command", "recovery"]
    assert len(answer["recovery_phrase"].split()) == 24
    assert app.main(["remote", "key", "share"]) == 0
    secret.write_text("another-secret-that-is-long-enough\n")
    capsys.readouterr()
    assert app.main(["remote", "key", "share"]) == 7
    out, err = capsys.readouterr()
    assert "another-secret" not in out + err
    secret.unlink()
    assert app.main(["remote", "key", "share"]) == 7
    assert "status 1" in capsys.readouterr().err


def test_a_key_file_that_others_can_read_is_refused(data_dir, tmp_path, capsys):
    key = tmp_path / "key"
    key.write_text("0123456789abcdef0123456789abcdef\n")
    key.chmod(0o644)
    words = ["remote", "add", "share", f"file://{tmp_path}/share", "--key-file", str(key)]
    assert app.main(words) == 2
    assert "chmod 600" in capsys.readouterr().err
    key.chmod(0o600)
    assert app.main(words) == 0
