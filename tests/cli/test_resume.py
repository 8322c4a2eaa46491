"""`resume` of kernels that have ended, with nothing left but a snapshot."""

import os
import signal
from pathlib import Path

import pytest
from jupyter_client import BlockingKernelClient

from tests.conftest import wait_for


def worth(env, kernel_id, expression):
    """Return the value of an expression in a kernel, found by its connection file."""
    path = Path(env["JUPYTER_RUNTIME_DIR"], f"kernel-{kernel_id}.json")
    assert path.stat().st_mode & 0o777 == 0o600
    client = BlockingKernelClient()
    client.load_connection_file(str(path))
    client.start_channels()
    client.wait_for_ready(180)
    reply = client.execute("", user_expressions={"it": expression}, reply=True, timeout=180)
    client.stop_channels()
    return reply["content"]["user_expressions"]["it"]["data"]["text/plain"]


def end(gpuckpt_json, pid):
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not gpuckpt_json("ps")["kernels"])


@pytest.mark.slow
def test_a_snapshot_is_resumed_after_its_kernel_ended_or_was_forgotten(
    kernel, gpuckpt, gpuckpt_json, daemon_env, short_dir
):
    assert kernel.worth("globals().update(x=41) or x") == "41"
    gpuckpt("suspend", "--all")
    [snapshot] = gpuckpt_json("list")["snapshots"]
    # Its script takes the kernel with it.
    kernel.kill()
    wait_for(lambda: not gpuckpt_json("ps")["kernels"])
    done = gpuckpt("resume", snapshot["snapshot_id"][:8])
    assert done.stdout.startswith(f"Resumed kernel {kernel.id} from snapshot")
    assert "jupyter console --existing" in done.stderr
    [back] = gpuckpt_json("ps")["kernels"]
    assert (back["kernel_id"], back["state"]) == (kernel.id, "running")
    assert worth(daemon_env, kernel.id, "x + 1") == "42"
    # A snapshot of a kernel that runs.
    refused = gpuckpt_json("resume", snapshot["snapshot_id"], status=6)
    assert "is running" in refused["error"]["message"]
    end(gpuckpt_json, back["pid"])
    # By the kernel's id, and where it was never known.
    archive = str(short_dir / "archive.tar")
    gpuckpt("export", snapshot["snapshot_id"], archive)
    daemon_env["JUPYTER_GPUCKPT_DATA_DIR"] += "/other"
    gpuckpt("import", archive)
    gpuckpt("resume", kernel.id)
    [back] = gpuckpt_json("ps")["kernels"]
    assert worth(daemon_env, kernel.id, "x + 1") == "42"
    end(gpuckpt_json, back["pid"])


def test_a_kernel_whose_file_is_shorter_is_resumed_by_force_only(
    kernel, gpuckpt, gpuckpt_json, short_dir
):
    file = short_dir / "array"
    file.write_bytes(b"\1" * 100_000)
    mapped = f"__import__('numpy').memmap({str(file)!r}, mode='r')"
    assert kernel.worth(f"globals().update(array={mapped}) or int(array[0])") == "1"
    gpuckpt("suspend", kernel.id)
    file.write_bytes(b"\1" * 10)
    error = gpuckpt_json("resume", kernel.id, status=3)["error"]
    assert (error["code"], str(file) in error["message"]) == ("files_changed", True)
    assert "--force" in error["command"]
    done = gpuckpt("resume", kernel.id, "--force")
    assert f"The file {file} has only 10 bytes now" in done.stderr
    assert "SIGBUS" in done.stderr
    assert kernel.worth("int(array[0])") == "1"
