"""A prune of a remote, with kernels, daemons and the commands that users type."""

import pytest

from tests.cli.test_remote_sessions import joined
from tests.conftest import wait_for


@pytest.mark.slow
def test_another_machine_removes_what_was_neither_pinned_nor_is_the_newest(
    kernel, gpuckpt, gpuckpt_json, daemon_env, short_dir
):
    share = ["share", f"file://{short_dir}/share"]
    line = joined(daemon_env, *share)

    def count_of_uploaded():
        return gpuckpt_json("remote", "status")["remotes"][0]["uploaded"]

    for number in range(4):
        kernel.worth(f"globals().update(x={number})")
        gpuckpt("save", kernel.id)
        # Of several that wait the newest is uploaded first, and the last that was uploaded stays for that reason.
        wait_for(lambda number=number: count_of_uploaded() == number + 1)
    saved = [one["snapshot_id"] for one in gpuckpt_json("list")["snapshots"]]

    def uploaded():
        return [one["snapshot_id"] for one in gpuckpt_json("list")["snapshots"] if one["uploads"]]

    assert uploaded() == saved
    gpuckpt("pin", saved[2])
    gpuckpt("note", saved[3], "--title", "Before the merge")
    here = daemon_env["JUPYTER_GPUCKPT_DATA_DIR"]
    daemon_env["JUPYTER_GPUCKPT_DATA_DIR"] = here + "/other"
    joined(daemon_env, "share", line=line)

    def verdicts():
        words = ("--keep-last", "1", "--manual-too", "--dry-run")
        found = gpuckpt_json("remote", "prune", "share", *words)["prune"]["verdicts"]
        return {one["snapshot_id"]: one for one in found}

    wait_for(lambda: [one for one in verdicts().values() if one["removed"]] != [])
    wait_for(lambda: [name for name, one in verdicts().items() if one["removed"]] == [saved[1]])
    assert verdicts()[saved[2]]["reason"] == "it is pinned"
    assert verdicts()[saved[3]]["reason"] == "it has a title or note"
    assert verdicts()[saved[3]]["title"] == "Before the merge"
    gpuckpt("remote", "prune", "share", "--keep-last", "1", "--manual-too", "-y")

    # The first machine still has all of them.
    daemon_env["JUPYTER_GPUCKPT_DATA_DIR"] = here
    assert [one["snapshot_id"] for one in gpuckpt_json("list")["snapshots"]] == saved
    listed = gpuckpt_json("remote", "sessions", "share")["sessions"][0]["snapshots"]
    assert [one["snapshot_id"] for one in listed] == [saved[0], *saved[2:]]
