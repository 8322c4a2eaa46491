"""The notes of notebooks whose session another machine has taken over: what they outlive, and what they do not say."""

from __future__ import annotations

import socket
from types import SimpleNamespace

import pytest

from jupyter_gpuckpt.daemon.kernels import lost_notebooks
from jupyter_gpuckpt.daemon.kernels.lost_notebooks import LostNotebooks, notebook_of


def record(kernel_id, path="a.ipynb"):
    return SimpleNamespace(kernel_id=kernel_id, jupyter={"root": "/srv/ada", "path": path})


def test_a_note_outlives_kernel_and_daemon_until_a_user_chooses(tmp_path):
    LostNotebooks(tmp_path).note(record("first"), "Taken over by desk.")
    found = LostNotebooks(tmp_path)
    for one in (record("first"), record("first", "elsewhere.ipynb"), record("second")):
        assert found.of(one) == "Taken over by desk."
    assert found.of(record("second", "b.ipynb")) == ""
    # In a copy its kernel goes on, and the notebook stays the other machine's.
    found.forget(record("first", "a-copy.ipynb"))
    assert LostNotebooks(tmp_path).of(record("first", "a-copy.ipynb")) == ""
    assert LostNotebooks(tmp_path).of(record("third")) == "Taken over by desk."
    found.forget(record("second"))
    assert LostNotebooks(tmp_path).of(record("third")) == ""


def test_another_host_with_this_home_has_notes_of_its_own(tmp_path, monkeypatch):
    LostNotebooks(tmp_path).note(record("first"), "Taken over by desk.")
    monkeypatch.setattr(socket, "gethostname", lambda: "desk")
    assert LostNotebooks(tmp_path).of(record("first")) == ""


def test_two_daemons_of_this_host_lose_no_notes_of_each_other(tmp_path):
    one, other = LostNotebooks(tmp_path), LostNotebooks(tmp_path)
    one.note(record("first"), "Taken over by desk.")
    other.note(record("second", "b.ipynb"), "Taken over by lab.")
    one.note(record("third", "c.ipynb"), "Taken over by den.")
    other.forget(record("third", "c.ipynb"))
    found = LostNotebooks(tmp_path)
    notes = [found.of(record("new", f"{name}.ipynb")) for name in "abc"]
    assert notes == ["Taken over by desk.", "Taken over by lab.", ""]


@pytest.mark.parametrize("content", [b"", b"[]", b'{"a": 1}', b"\xff"])
def test_a_damaged_file_is_logged_and_replaced(tmp_path, caplog, content):
    LostNotebooks(tmp_path).note(record("first"), "Taken over.")
    [path] = tmp_path.glob("*.json")
    path.write_bytes(content)
    found = LostNotebooks(tmp_path)
    assert found.of(record("first")) == ""
    assert "are not known" in caplog.text
    found.note(record("first"), "Taken over.")
    assert LostNotebooks(tmp_path).of(record("second")) == "Taken over."


def test_old_notes_are_dropped(tmp_path, monkeypatch):
    monkeypatch.setattr(lost_notebooks, "_MAX_NOTES", 4)
    found = LostNotebooks(tmp_path)
    for name in "abc":
        found.note(record(name, f"{name}.ipynb"), name)
    assert [found.of(record(name, f"{name}.ipynb")) for name in "abc"] == ["", "b", "c"]


def test_what_is_no_description_names_no_notebook():
    assert notebook_of({"root": "/srv/ada", "path": "x/../a.ipynb"}) == "/srv/ada/a.ipynb"
    for jupyter in ({}, {"root": 1, "path": "a"}, {"root": "/srv/ada", "path": ""}):
        assert notebook_of(jupyter) == ""
