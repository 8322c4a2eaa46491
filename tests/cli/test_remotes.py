"""`jupyter gpuckpt remote` tries a bucket out before it is remembered, and never repeats a secret."""

from __future__ import annotations

import json
import re

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
