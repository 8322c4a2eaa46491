"""A kernel goes by a remote to another machine, with the commands that people type."""

import asyncio
import json
import shutil
import signal
import socket
import subprocess
import sys
from ctypes.util import find_library
from pathlib import Path

import pytest

from jupyter_gpuckpt.cli.remote.move_command import _AskedOfTheDaemon
from jupyter_gpuckpt.wire import calls
from jupyter_gpuckpt.wire.protocol import Operation, OperationKind, OperationState
from tests.cli.test_resume import end, worth
from tests.conftest import wait_for


@pytest.fixture
def library(short_dir):
    """Return a library for a kernel to load."""
    found = subprocess.run(["ldconfig", "-p"], capture_output=True, text=True, check=True).stdout
    name = find_library("z")
    path = next(line.split()[-1] for line in found.splitlines() if line.split()[:1] == [name])
    return Path(shutil.copy(path, short_dir / "libmine.so"))


def joined(env, name, url="", *options, line=""):
    """Create a remote on the machine of an environment, or add it by a line; the line that lets the next one in."""
    words = ["add", name] if line else ["create", name, url, *options]
    done = subprocess.run(
        [sys.executable, "-m", "jupyter_gpuckpt.cli", "remote", *words, "--json"],
        input=line,
        capture_output=True,
        env=env,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["line"]


@pytest.mark.slow  # tests/server and tests/browser move kernels in every run
def test_a_kernel_moves_to_another_machine(
    kernel, gpuckpt, gpuckpt_json, daemon_env, short_dir, library
):
    kernel.worth(f"globals().update(x=41, mine=__import__('ctypes').CDLL('{library}'))")
    gpuckpt("suspend", "--all")
    [snapshot] = gpuckpt_json("list")["snapshots"]
    snapshot_id = snapshot["snapshot_id"]
    share = ["share", f"file://{short_dir}/share"]
    line = joined(daemon_env, *share)
    gpuckpt("remote", "upload", "share", snapshot_id)
    kernel.kill()
    wait_for(lambda: not gpuckpt_json("ps")["kernels"])

    # The other machine, on which the library is another one at first.
    daemon_env["JUPYTER_GPUCKPT_DATA_DIR"] += "/other"
    joined(daemon_env, "share", line=line)
    content = library.read_bytes()
    library.write_bytes(content + b"another version")
    listed = gpuckpt("remote", "sessions", "share").stdout.splitlines()
    # A script's kernel has no notebook.
    assert listed[1].split()[:3] == [snapshot_id[:8], "-", socket.gethostname()]
    assert listed[1].endswith("no")
    checked = gpuckpt("remote", "fetch", "share", snapshot_id[:8], "--check", status=3)
    assert f"The file {library}, which the kernel uses, was replaced" in checked.stderr
    assert "at the same paths and in the same versions" in checked.stderr
    refused = gpuckpt_json("remote", "fetch", "share", snapshot_id, status=3)["error"]
    assert refused["code"] == "host_incompatible"
    assert gpuckpt_json("list")["snapshots"] == []

    library.write_bytes(content)
    estimate = gpuckpt_json("remote", "fetch", "share", snapshot_id, "--check")
    assert (estimate["obstacles"], estimate["here_bytes"]) == ([], 0)
    done = gpuckpt("remote", "fetch", "share", snapshot_id[:8])
    assert done.stdout.startswith(f"Fetched snapshot {snapshot_id}: ")
    moved = snapshot["sizes"]["stored_bytes"]
    assert abs(estimate["move_bytes"] - moved) < moved / 100
    assert gpuckpt("remote", "sessions", "share").stdout.splitlines()[1].endswith("yes")
    again = gpuckpt_json("remote", "fetch", "share", snapshot_id, status=6)["error"]
    assert again["code"] == "snapshot_exists"
    none = gpuckpt_json("remote", "fetch", "share", "nothing", status=5)["error"]
    assert none["code"] == "snapshot_not_found"

    # What came from there does not go there again.
    [status] = gpuckpt_json("remote", "status", "share")["remotes"]
    assert (status["uploaded"], status["waiting"], status["trouble"]) == (1, 0, None)

    gpuckpt("resume", snapshot_id)
    [back] = gpuckpt_json("ps")["kernels"]
    assert (back["kernel_id"], back["state"]) == (kernel.id, "running")
    assert worth(daemon_env, kernel.id, "(x + 1, mine.zlibVersion() != 0)") == "(42, True)"
    end(gpuckpt_json, back["pid"])


@pytest.mark.slow
def test_a_kernel_that_runs_is_not_continued_elsewhere_unless_it_is_taken_over(
    kernel, gpuckpt, gpuckpt_json, daemon_env, short_dir
):
    kernel.worth("globals().update(x=41)")
    gpuckpt("save", kernel.id)
    [snapshot] = gpuckpt_json("list")["snapshots"]
    snapshot_id = snapshot["snapshot_id"]
    share = ["share", f"file://{short_dir}/share"]
    line = joined(daemon_env, *share)
    gpuckpt("remote", "upload", "share", snapshot_id)

    def sessions():
        return gpuckpt_json("remote", "sessions", "share")["sessions"]

    wait_for(lambda: sessions()[0]["leased_to"])
    heads, row = gpuckpt("remote", "sessions", "share").stdout.splitlines()
    assert "RUNNING ON" in heads
    assert row.count(socket.gethostname()) == 2
    other = daemon_env["JUPYTER_GPUCKPT_DATA_DIR"] + "/other"
    first, daemon_env["JUPYTER_GPUCKPT_DATA_DIR"] = daemon_env["JUPYTER_GPUCKPT_DATA_DIR"], other
    joined(daemon_env, "share", line=line)
    refused = gpuckpt_json("remote", "fetch", "share", snapshot_id, status=6)["error"]
    assert refused["code"] == "session_held"
    assert f"runs on machine {socket.gethostname()}, since" in refused["message"]
    assert "--take-over" in refused["command"]
    assert gpuckpt_json("list")["snapshots"] == []
    assert "runs on machine" in gpuckpt("remote", "fetch", "share", snapshot_id, "--check").stderr
    gpuckpt("remote", "fetch", "share", snapshot_id, "--take-over")
    gpuckpt("resume", snapshot_id, "--take-over")
    [back] = gpuckpt_json("ps")["kernels"]
    assert worth(daemon_env, kernel.id, "x") == "41"

    # The first one suspends its kernel by itself and says why; what the kernel goes on with is a branch.
    daemon_env["JUPYTER_GPUCKPT_DATA_DIR"] = first

    def shown():
        [one] = gpuckpt_json("ps")["kernels"]
        return one["state"], (one["error"] or {}).get("code")

    wait_for(lambda: shown() == ("suspended", "session_lost"))
    assert "as a branch" in gpuckpt("ps").stderr
    gpuckpt("resume", kernel.id)
    kernel.worth("globals().update(x=42)")
    gpuckpt("save", kernel.id)
    wait_for(lambda: len(sessions()) == 2)
    # Nothing of the branch is in the session that was taken over; the pause has made one more snapshot of it.
    assert min(len(one["snapshots"]) for one in sessions()) == 1
    assert {one["snapshots"][0]["kernel_id"] for one in sessions()} == {kernel.id}
    daemon_env["JUPYTER_GPUCKPT_DATA_DIR"] = other
    end(gpuckpt_json, back["pid"])
    daemon_env["JUPYTER_GPUCKPT_DATA_DIR"] = first


class SlowToAnswer:
    """A stand-in for a daemon that begins an operation and answers later."""

    def __init__(self):
        self.begun, self.answers, self.sent = asyncio.Event(), asyncio.Event(), []

    async def send(self, call):
        self.sent.append(call.path)
        self.begun.set()
        await self.answers.wait()
        return Operation("o1", OperationKind.SUSPEND, "k", OperationState.RUNNING)

    async def finish(self, operation_id):
        self.sent.append(f"the end of {operation_id}")


def test_an_interrupt_before_the_daemons_answer_cancels_the_operation_that_it_began():
    async def interrupted():
        daemon = SlowToAnswer()
        suspending = asyncio.ensure_future(_AskedOfTheDaemon(daemon, "k", "offsite").suspend())
        await daemon.begun.wait()
        suspending.cancel()
        await asyncio.sleep(0)
        daemon.answers.set()
        with pytest.raises(asyncio.CancelledError):
            await suspending
        return daemon.sent

    assert asyncio.run(interrupted()) == [
        calls.suspend("k").path,
        calls.cancel("o1").path,
        "the end of o1",
    ]


@pytest.mark.slow  # tests/server moves kernels in every run
def test_a_kernel_is_moved_or_is_as_it_was(kernel, gpuckpt, gpuckpt_json, daemon_env, short_dir):
    kernel.worth("globals().update(x=41)")
    assert gpuckpt_json("move", kernel.id, status=2)["error"]["code"] == "configuration"
    share = ["share", f"file://{short_dir}/share"]
    line = joined(daemon_env, *share)
    # The remote is asked before anything is done; what goes wrong later is undone.
    assert gpuckpt_json("move", kernel.id, "--to", "other", status=2)
    epoch = short_dir / "share/epoch"
    epoch.write_text("This is none.")
    failed = gpuckpt("move", kernel.id, status=7)
    assert "The kernel was not moved and runs on here." in failed.stderr
    assert "It is safe" not in failed.stdout
    assert kernel.worth("x + 1") == "42"
    epoch.unlink()

    # At this rate it takes hours, and its user does not wait.
    slow = ["slow", f"file://{short_dir}/slow", "--upload-rate", "1K", "--manual"]
    gpuckpt("remote", "create", *slow)
    command = [sys.executable, "-m", "jupyter_gpuckpt.cli", "move", kernel.id, "--to", "slow"]
    with subprocess.Popen(command, env=daemon_env, stderr=subprocess.PIPE, text=True) as moving:
        wait_for(lambda: gpuckpt_json("remote", "status", "slow")["remotes"][0]["uploading"])
        moving.send_signal(signal.SIGINT)
        assert "The kernel was not moved and runs on here." in moving.communicate()[1]
    assert moving.returncode == 130
    assert kernel.worth("x + 1") == "42"
    assert gpuckpt("remote", "rm", "slow")

    moved = gpuckpt("move", kernel.id[:8])
    assert moved.stdout.endswith("It is safe to close this machine.\n")
    assert "remote fetch share" in moved.stderr
    [here] = gpuckpt_json("ps")["kernels"]
    assert (here["state"], here["moved_to"]) == ("suspended", "share")
    assert "moved to share" in gpuckpt("ps").stdout
    again = gpuckpt_json("move", kernel.id)["moved"]
    assert (again["snapshot_id"], again["is_released"]) == (here["snapshot_id"], True)
    other = daemon_env["JUPYTER_GPUCKPT_DATA_DIR"] + "/other"
    first, daemon_env["JUPYTER_GPUCKPT_DATA_DIR"] = daemon_env["JUPYTER_GPUCKPT_DATA_DIR"], other
    joined(daemon_env, "share", line=line)
    [session] = gpuckpt_json("remote", "sessions", "share")["sessions"]
    assert session["leased_to"] == ""
    assert gpuckpt("remote", "fetch", "share", again["snapshot_id"])
    daemon_env["JUPYTER_GPUCKPT_DATA_DIR"] = first
    kernel.kill()
