"""The command as people and programs use it: a process of its own, a real daemon, a real kernel."""

import json
import os
import pty
import re
import subprocess
import sys
from functools import partial

import pytest

from jupyter_gpuckpt.host.doctor_checks import INSTALL
from tests.programs import run_command


def test_the_doctor_suspends_and_resumes_a_program(gpuckpt, gpuckpt_json):
    host = gpuckpt_json("doctor")["host"]
    assert host["engine_available"]
    names = {one["name"] for one in host["checks"]}
    assert {"platform", "criu", "namespaces", "system calls", "suspend", "resume"} <= names
    said = gpuckpt("doctor").stdout
    assert "Kernels can be saved here." in said
    assert "criu" in said


def test_a_doctor_without_criu_says_so_and_what_helps(daemon_env, tmp_path):
    env = daemon_env | {"JUPYTER_GPUCKPT_CRIU": str(tmp_path / "none")}
    done = run_command(env, "doctor", status=3)
    assert "Kernels cannot be saved here" in done.stdout
    assert INSTALL in done.stdout


def test_the_doctor_works_where_the_daemon_cannot_be_started(daemon_env, short_dir):
    (short_dir / "data/state").mkdir(parents=True)
    (short_dir / "data/state/kernels").write_text("a file in the way")
    run = partial(subprocess.run, env=daemon_env, capture_output=True, text=True, timeout=300)
    command = [sys.executable, "-m", "jupyter_gpuckpt.cli"]
    assert "could not be started" in run([*command, "ps"], check=False).stderr
    done = run([*command, "doctor"], check=True)
    assert "Kernels can be saved here." in done.stdout


def test_empty_lists_say_so(gpuckpt, gpuckpt_json):
    assert gpuckpt("ps").stdout == "No kernels.\n"
    assert gpuckpt("list").stdout == "No snapshots.\n"
    assert gpuckpt_json("ps") == {"kernels": []}
    assert gpuckpt_json("list") == {"snapshots": []}


@pytest.mark.parametrize("words", [["save", "abc"], ["show", "abc"], ["rm", "abc"]])
def test_what_is_not_there_is_status_5_with_a_hint(words, gpuckpt, gpuckpt_json):
    done = gpuckpt(*words, status=5)
    assert done.stdout == ""
    assert "Hint: " in done.stderr
    assert gpuckpt_json(*words, status=5)["error"]["code"].endswith("_not_found")


def test_a_data_directory_that_cannot_be_made_is_told_in_a_sentence(daemon_env):
    env = daemon_env | {"JUPYTER_GPUCKPT_DATA_DIR": "/dev/null/data"}
    done = subprocess.run(
        [sys.executable, "-m", "jupyter_gpuckpt.cli", "ps"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        env=env,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode in {2, 7}
    assert done.stderr.startswith("gpuckptd could not be started: ")
    assert "\nHint: " in done.stderr


def test_a_kernel_is_suspended_and_resumed_with_its_state(kernel, gpuckpt_program, gpuckpt_json):
    assert kernel.worth("globals().update(x=41) or x") == "41"
    assert f"Suspended kernel {kernel.id}" in gpuckpt_program("suspend", kernel.id[:10]).stdout
    (listed,) = gpuckpt_json("ps")["kernels"]
    assert (listed["state"], listed["pid"]) == ("suspended", 0)
    assert "suspended" in gpuckpt_program("ps").stdout
    assert f"Resumed kernel {kernel.id}" in gpuckpt_program("resume", kernel.id).stdout
    assert kernel.worth("x + 1") == "42"
    (listed,) = gpuckpt_json("ps")["kernels"]
    assert listed["state"] == "running"
    assert listed["pid"] > 0


def test_a_kernel_is_saved_listed_shown_and_the_snapshot_removed(kernel, gpuckpt, gpuckpt_json):
    operation = gpuckpt_json("save", kernel.id)["operation"]
    assert operation["state"] == "succeeded"
    snapshot_id = operation["result"]["snapshot_id"]
    assert kernel.worth("1 + 1") == "2"
    (listed,) = gpuckpt_json("list", "--kernel", kernel.id[:8])["snapshots"]
    assert listed["snapshot_id"] == snapshot_id
    assert "just now" in gpuckpt("list").stdout
    shown = gpuckpt("show", snapshot_id).stdout
    assert snapshot_id in shown
    assert kernel.id in shown
    removed = gpuckpt("rm", snapshot_id)
    assert removed.stdout == f"Deleted snapshot {snapshot_id}.\n"
    assert "undelete" in removed.stderr
    assert gpuckpt_json("list") == {"snapshots": []}
    (deleted,) = gpuckpt_json("list", "--deleted")["snapshots"]
    assert deleted["snapshot_id"] == snapshot_id
    assert gpuckpt("undelete").stdout == f"Brought back snapshot {snapshot_id}.\n"
    (back,) = gpuckpt_json("list")["snapshots"]
    assert back == listed
    assert "can be undone" in gpuckpt("undelete").stdout


def test_no_secret_is_shown(kernel, gpuckpt, gpuckpt_json):
    snapshot_id = gpuckpt_json("save", kernel.id)["operation"]["result"]["snapshot_id"]
    shown = json.dumps(gpuckpt_json("show", snapshot_id))
    assert "JUPYTER_GPUCKPT_DATA_DIR" not in shown  # the kernel's environment
    assert '"key"' not in shown  # the connection's


def test_the_snapshot_of_a_suspended_kernel_is_not_removed(kernel, gpuckpt, gpuckpt_json):
    snapshot_id = gpuckpt_json("suspend", kernel.id)["operation"]["result"]["snapshot_id"]
    assert gpuckpt_json("rm", snapshot_id, status=6)["error"]["code"] == "snapshot_in_use"
    gpuckpt("resume", kernel.id)
    assert kernel.worth("1 + 1") == "2"


def test_pruning_says_what_goes_and_why_and_does_it(kernel, gpuckpt, gpuckpt_json, daemon_env):
    def save():
        # A snapshot that is like its neighbors weighs nothing, and no limit of bytes removes it.
        kernel.worth("globals().update(data=__import__('os').urandom(4_000_000))")
        return gpuckpt_json("save", kernel.id)["operation"]["result"]["snapshot_id"]

    first, second, third = (save() for _ in range(3))
    assert "Hint: Give --keep-last" in gpuckpt("prune", status=2).stderr
    said = gpuckpt("prune", "--keep-last", "1").stdout
    assert "taken by hand" in said
    assert "0 deleted, 3 stay." in said
    rules = ["--keep-last", "2", "--manual-too"]
    said = gpuckpt("prune", *rules, "--dry-run").stdout
    # Most of the 4 MB, and what else of the kernel's memory no neighbor has.
    about = re.search(r"1 would be deleted, 2 stay. About (\d+\.\d+) MB would become free.", said)
    assert 2 < float(about[1]) < 10
    (line,) = (line for line in said.splitlines() if first[:8] in line)
    assert "delete" in line
    assert "no rule keeps it" in line
    assert len(gpuckpt_json("list")["snapshots"]) == 3
    asked = on_a_terminal(["prune", *rules], b"n\n", daemon_env, status=6)
    assert b"Delete this snapshot for ever? [y/N]" in asked
    pruned = gpuckpt_json("prune", *rules)["prune"]
    assert [one["removed"] for one in pruned["verdicts"]] == [False, False, True]
    assert pruned["freed_bytes"] >= 0
    assert [one["snapshot_id"] for one in gpuckpt_json("list")["snapshots"]] == [third, second]
    # The kernel's own stays, whatever is asked.
    gpuckpt("prune", "--max-size", "1", "--manual-too", "--yes")
    assert [one["snapshot_id"] for one in gpuckpt_json("list")["snapshots"]] == [third]


def test_on_a_terminal_removing_and_ending_ask_first_and_saving_draws_a_bar(
    kernel, gpuckpt_json, daemon_env
):
    said = on_a_terminal(["save", kernel.id], b"", daemon_env)
    assert b"\x1b[K" in said
    assert b"Saved kernel" in said
    (listed,) = gpuckpt_json("list")["snapshots"]
    said = on_a_terminal(["rm", listed["snapshot_id"]], b"n\n", daemon_env, status=6)
    assert b"Delete this snapshot? [y/N]" in said
    assert len(gpuckpt_json("list")["snapshots"]) == 1
    on_a_terminal(["rm", listed["snapshot_id"]], b"y\n", daemon_env)
    assert gpuckpt_json("list")["snapshots"] == []
    said = on_a_terminal(["end", kernel.id], b"n\n", daemon_env, status=6)
    assert b"What it did is lost. [y/N]" in said
    assert kernel.worth("1 + 1") == "2"
    assert b"Ended kernel" in on_a_terminal(["end", kernel.id], b"y\n", daemon_env)
    assert gpuckpt_json("ps")["kernels"] == []


def on_a_terminal(words, typed, env, *, status=0):
    """Return the command's output on a terminal on which `typed` is typed."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "jupyter_gpuckpt.cli", *words],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=env,
    )
    os.close(theirs)
    os.write(ours, typed)
    said = b""
    try:
        while piece := os.read(ours, 4096):
            said += piece
    except OSError:  # the last one closed the terminal
        pass
    finally:
        os.close(ours)
    assert process.wait(180) == status, said
    return said
