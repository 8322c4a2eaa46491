"""Outlines of files: what is read, what is not read again, and disks that do not answer."""

from __future__ import annotations

import os
import time

import pytest

from jupyter_gpuckpt.host import file_outlines
from jupyter_gpuckpt.host.file_outlines import FileOutlines, Wanted
from tests.conftest import wait_for
from tests.silent_disk import silent_disk

MB = 1 << 20


@pytest.fixture
def silent(tmp_path):
    """Yield the path of a file that can be examined but never read, and a stream of what its server says."""
    (tmp_path / "silent").touch()
    with silent_disk(tmp_path / "mnt", tmp_path / "silent") as found:
        yield found


def outline(outlines, path, length=None, known=None):
    return outlines.read({str(path): Wanted(path, length, known)})[str(path)]


def test_a_file_whose_disk_does_not_answer_delays_nothing_else(silent, tmp_path):
    path, said = silent
    outlines, fine = FileOutlines(patience=0.2), tmp_path / "fine"
    fine.write_text("fine")
    wanted = {str(path): Wanted(path), str(fine): Wanted(fine)}
    found = outlines.read(wanted)
    assert said.readline() == "asked\n"
    assert isinstance(found[str(path)], TimeoutError)
    assert found[str(fine)].digest
    # Until it answers, no other thread waits for it.
    begun = time.monotonic()
    patient = FileOutlines(patience=60)
    patient._late = outlines._late
    assert isinstance(patient.read(wanted)[str(path)], TimeoutError)
    assert time.monotonic() - begun < 30


def test_a_digest_is_that_of_the_bytes_that_were_there(tmp_path):
    outlines, path = FileOutlines(), tmp_path / "log"
    path.write_bytes(b"x" * 100)
    before = outline(outlines, path)
    with path.open("ab") as file:
        file.write(b"more")
    assert outline(outlines, path, 100).digest == before.digest
    assert outline(outlines, path).digest != before.digest
    assert outline(outlines, path, 100, outline(outlines, path).version).digest == ""
    path.write_bytes(b"x" * 50)
    assert (outline(outlines, path, 100).digest, outline(outlines, path, 100).length) == ("", 50)


def test_of_a_large_file_both_ends_are_read(tmp_path):
    path = tmp_path / "large"
    with path.open("wb") as file:
        file.truncate(file_outlines.WHOLE_BYTES + 10 * MB)
    before = outline(FileOutlines(), path).digest

    def after(change):
        with path.open("r+b") as file:
            file.seek(change, os.SEEK_END if change < 0 else os.SEEK_SET)
            file.write(b"\1")
        return outline(FileOutlines(), path).digest

    assert after(8 * MB) == before
    assert after(-MB) != before
    assert len({before, after(-1), after(0)}) == 3


def test_only_so_much_is_read_at_once_and_unchanged_files_are_not_read_again(tmp_path, monkeypatch):
    monkeypatch.setattr(file_outlines, "_MAX_BYTES", 250)
    outlines = FileOutlines()
    paths = [tmp_path / str(number) for number in range(4)]
    for path in paths:
        path.write_bytes(b"x" * 100)

    def known():
        found = outlines.read({str(path): Wanted(path) for path in paths})
        return sum(bool(one.digest) for one in found.values())

    assert known() == 2
    assert known() == 4


def test_what_is_no_regular_file_is_not_read(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    outlines = FileOutlines()
    for name in ("pipe", "folder"):
        assert outline(outlines, tmp_path / name).digest == ""
    assert isinstance(outline(outlines, tmp_path / "none"), FileNotFoundError)


def test_a_late_thread_ends_with_its_file(tmp_path):
    outlines = FileOutlines(patience=0)
    for number in range(50):
        (tmp_path / str(number)).write_bytes(b"x" * MB)
    outlines.read({str(path): Wanted(path) for path in tmp_path.iterdir()})
    wait_for(lambda: not any(thread.is_alive() for thread in outlines._late.values()))
    outlines = FileOutlines()
    assert outline(outlines, tmp_path / "1").digest
