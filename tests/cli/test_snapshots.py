"""Snapshots from the command line: notes, pins, verification, archives."""

import os
import subprocess
import sys

import pytest

from tests.programs import run_command


@pytest.fixture
def snapshot_id(kernel, gpuckpt_json):
    return gpuckpt_json("save", kernel.id)["operation"]["result"]["snapshot_id"]


@pytest.fixture
def elsewhere(daemon_env, short_dir):
    """Run the command with another data directory, as on another machine."""

    def run(*words, status=0, stdin=subprocess.DEVNULL, place="elsewhere"):
        env = daemon_env | {"JUPYTER_GPUCKPT_DATA_DIR": str(short_dir / place)}
        return run_command(env, *words, status=status, stdin=stdin).stdout

    return run


def test_a_note_a_title_and_a_pin(snapshot_id, gpuckpt, gpuckpt_json):
    gpuckpt("note", snapshot_id[:10], status=2)
    said = gpuckpt("note", snapshot_id[:10], "all is well", "--title", "evening").stdout
    assert "'evening'" in said
    assert ", pinned" in gpuckpt("pin", snapshot_id).stdout
    (listed,) = gpuckpt_json("list")["snapshots"]
    assert (listed["title"], listed["note"]) == ("evening", "all is well")
    assert listed["pinned"] is True
    assert "evening" in gpuckpt("list").stdout
    assert "all is well" in gpuckpt("show", snapshot_id).stdout
    assert gpuckpt_json("unpin", snapshot_id)["snapshot"]["pinned"] is False
    assert gpuckpt_json("note", snapshot_id, "")["snapshot"]["note"] == ""


def test_a_snapshot_goes_elsewhere_by_a_file_and_by_a_pipe(
    snapshot_id, gpuckpt, gpuckpt_json, elsewhere, daemon_env, tmp_path
):
    path = tmp_path / "session.tar"
    said = gpuckpt("export", snapshot_id[:10], str(path))
    assert said.stdout.startswith(f"Exported snapshot {snapshot_id}: ")
    assert "passwords" in said.stderr
    assert path.stat().st_mode & 0o777 == 0o600
    assert os.listdir(tmp_path) == ["session.tar"]
    told = gpuckpt_json("export", snapshot_id, str(path))
    assert told["bytes"] == path.stat().st_size
    assert elsewhere("import", str(path)).startswith(f"Imported snapshot {snapshot_id}")
    assert snapshot_id in elsewhere("verify")
    elsewhere("import", str(path), status=6)
    elsewhere("rm", snapshot_id)
    assert "snapshot_exists" in elsewhere("import", str(path), "--json", status=6)
    gpuckpt("import", str(tmp_path / "none.tar"), status=2)
    gpuckpt("export", snapshot_id, str(tmp_path / "none" / "x.tar"), status=2)
    # By a pipe.
    gpuckpt("export", snapshot_id, "-", "--json", status=2)
    with subprocess.Popen(
        [sys.executable, "-m", "jupyter_gpuckpt.cli", "export", snapshot_id, "-"],
        stdout=subprocess.PIPE,
        env=daemon_env,
    ) as exporting:
        said = elsewhere("import", "-", stdin=exporting.stdout, place="third")
    assert exporting.returncode == 0
    assert said.startswith(f"Imported snapshot {snapshot_id}")
    path.write_bytes(path.read_bytes()[:-2000])
    assert "archive_invalid" in elsewhere("import", str(path), "--json", status=2, place="fourth")


def test_damage_is_status_10(snapshot_id, gpuckpt, gpuckpt_json, short_dir, tmp_path):
    assert f"Snapshot {snapshot_id} is whole: " in gpuckpt("verify", snapshot_id[:10]).stdout
    # Two threads may have written one each; in the middle of the larger one is a chunk.
    path = max(
        (short_dir / "data" / "store" / "packs").iterdir(), key=lambda pack: pack.stat().st_size
    )
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    said = gpuckpt("verify", status=10).stdout
    assert f"Snapshot {snapshot_id} is damaged:\n" in said
    assert path.name in said
    (verified,) = gpuckpt_json("verify", status=10)["verifications"]
    assert verified["ok"] is False
    failed = gpuckpt("export", snapshot_id, str(tmp_path / "x.tar"), status=10).stderr
    assert f"jupyter gpuckpt verify {snapshot_id}" in failed
    assert os.listdir(tmp_path) == []
