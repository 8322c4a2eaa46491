"""Tests as other users do not meet those of another run, nor what a run that was killed has left."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests import uids
from tests.as_user import ROOT

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="being other users needs root")


def reserved() -> int:
    """Return the first user id that another process of tests gets."""
    command = [sys.executable, "-c", "from tests import uids; print(uids.first())"]
    return int(subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout)


def test_what_a_killed_run_has_left_is_removed_and_nothing_else():
    ours = uids.first()
    uid = reserved() + 7
    assert uid - 7 != ours
    kept = Path(f"/tmp/gpuckpt-{ours + 90}")
    kept.mkdir()
    try:
        Path(f"/tmp/gpuckpt-{uid}-own").symlink_to("/nowhere")
        for left in (Path(f"/tmp/gpuckpt-{uid}"), Path(f"/dev/shm/.gpuckpt-test-{uid}")):
            left.mkdir()
            os.chown(left, uid, uid)
        sleeping = subprocess.Popen(["sleep", "1000"], user=uid)
        # Another run that began meanwhile may have taken that range.
        if reserved() != uid - 7:
            sleeping.kill()
            sleeping.wait()
            pytest.skip("another run of the tests holds these ids now")
        assert sleeping.wait(60) == -9
        assert not list(Path("/tmp").glob(f"gpuckpt-{uid}*"))
        assert not list(Path("/dev/shm").glob(f".gpuckpt-test-{uid}"))
        assert kept.exists()
    finally:
        shutil.rmtree(kept)
