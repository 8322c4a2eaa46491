"""An uploader that is stopped by SIGSTOP while a collector goes through three epochs lists only what is there."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest

from jupyter_gpuckpt.remote.collector import collect
from tests.remote.conftest import opened
from tests.remote.installations import content_of
from tests.remote.stores import FACTS, Machine, chunks, mark_deleted

ROOT = Path(__file__).parents[2]
FIRST, SECOND = chunks(1, 12), chunks(2, 24)
#: Two packs, an index, a manifest, and the session.
FEWEST_WRITES = 5


@pytest.mark.parametrize(
    "remote", [pytest.param("files", marks=pytest.mark.slow), "seaweedfs"], indirect=True
)
def test_an_uploader_that_was_stopped_over_three_epochs_lists_only_what_is_there(
    remote, tmp_path, monkeypatch
):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    number = 0
    while _comes_back(remote, tmp_path / str(number), number):
        number += 1
    assert number >= FEWEST_WRITES


def _comes_back(remote, folder, number) -> bool:
    """Stop an upload before this write, and compare what it lists in the end; False where it has no such write."""
    # Every upload gets an empty remote of its own.
    remote = msgspec.structs.replace(remote, url=f"{remote.url}/{number}")
    bucket = opened(remote, folder)
    with closing(Machine(bucket, folder / "a")) as machine:
        machine.save("s1", *FIRST)
        machine.upload("s1")
        # From now on only the upload that begins needs these packs.
        mark_deleted(machine.sessions, FACTS.session_id, "s1", 1.0)
        machine.save("s2", *FIRST, *SECOND)
    words = [sys.executable, "-m", "tests.remote.uploading", str(folder / "a")]
    words += [msgspec.json.encode(remote).decode(), "s2", str(number)]
    with (
        closing(Machine(bucket, folder / "b")) as other,
        subprocess.Popen(words, stdout=subprocess.DEVNULL) as process,
    ):
        try:
            _, status = os.waitpid(process.pid, os.WUNTRACED)
            was_stopped = os.WIFSTOPPED(status)
            if was_stopped:
                for _ in range(3):
                    collected(other)
                process.send_signal(signal.SIGCONT)
                status = process.wait()
            assert status == 0, number
        finally:
            process.kill()
        for _ in range(3):
            collected(other)
        other.fetch("s2")
        assert content_of(other.store, "s2") == [*FIRST, *SECOND], number
    return was_stopped


def collected(machine) -> None:
    collect(machine.bucket, machine.seal, machine.seen, min_age=timedelta(0))
