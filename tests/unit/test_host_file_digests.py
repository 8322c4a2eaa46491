"""Digests of files: made once, made again when a file changed, kept over restarts."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from blake3 import blake3

from jupyter_gpuckpt.host.file_digests import FileDigests
from tests.conftest import wait_for


@pytest.fixture
def digests(tmp_path):
    made = FileDigests(tmp_path / "digests")
    yield made
    made.close()


def written(path: Path, content: bytes) -> str:
    path.write_bytes(content)
    return str(path)


def test_a_digest_is_that_of_the_content_now(digests, tmp_path):
    path = written(tmp_path / "a", b"one")
    assert digests.of(path) == blake3(b"one").hexdigest()
    status = os.stat(path)
    written(tmp_path / "a", b"two")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))  # the time of change differs
    assert digests.of(path) == blake3(b"two").hexdigest()


def test_an_unchanged_file_is_read_once(digests, tmp_path, monkeypatch):
    path = written(tmp_path / "a", b"one")
    expected = digests.of(path)
    monkeypatch.setattr("jupyter_gpuckpt.host.file_digests.blake3", None)
    assert digests.of(path) == expected == digests.known(path)


def test_small_files_are_read_now_and_large_ones_in_the_background(digests, tmp_path):
    small = written(tmp_path / "small", b"1" * 10)
    large = written(tmp_path / "large", b"2" * 1000)
    digests.learn([large, small, str(tmp_path / "none")], max_bytes=100)
    assert digests.known(small)
    wait_for(lambda: digests.known(large))


@pytest.mark.parametrize("damage", [b"", b"\xff\xff", b"\x81\xa1a\xa1b"])
def test_they_are_kept_over_restarts_and_made_again_where_the_file_is_damaged(tmp_path, damage):
    path, kept = written(tmp_path / "a", b"one"), tmp_path / "digests"
    first = FileDigests(kept)
    first.learn([path], max_bytes=100)
    first.close()
    again = FileDigests(kept)
    assert again.known(path) == blake3(b"one").hexdigest()
    again.close()
    kept.write_bytes(damage)
    anew = FileDigests(kept)
    assert anew.known(path) == ""
    assert anew.of(path) == blake3(b"one").hexdigest()
    anew.close()


def test_what_cannot_be_kept_is_no_error(tmp_path):
    path = written(tmp_path / "a", b"one")
    digests = FileDigests(tmp_path / "no" / "such" / "folder")
    digests.learn([path], max_bytes=100)
    assert digests.known(path)
    digests.close()
