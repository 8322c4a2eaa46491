"""The command line beside a server: what it does to the kernels of notebooks."""

import json
import subprocess
import sys
from functools import partial

import pytest

from tests.programs import run_command


@pytest.fixture
def server(clean_server):
    return clean_server


@pytest.fixture
def gpuckpt(server):
    """Return a function that runs the command, without a terminal, and returns its completed process."""
    return partial(run_command, server.env)


@pytest.mark.slow
def test_a_kernel_is_compared_with_its_latest_snapshot_and_with_what_it_is_now(server, gpuckpt):
    page = server.open("train.ipynb")
    page.run("x, same, gone = 41, list(range(9)), 1")
    said = gpuckpt("save", "train", "--title", "before the change")
    assert f"Saved kernel {page.kernel_id}" in said.stdout
    page.run("x += 1; new = 'text'; del gone")
    found = gpuckpt("diff", "latest").stdout.splitlines()
    said = {tuple(line.split()[:2]): line.split()[2:] for line in found}
    assert said["added", "new"][:3] == ["str", "53", "B"]
    assert said["removed", "gone"] == ["int", "28", "B", "1"]
    assert said["changed", "x"] == ["int", "28", "B", "41", "->", "42"]
    assert found[-1] == "1 unchanged."
    document = json.loads(gpuckpt("diff", "train", "latest", "--json").stdout)
    assert document["from"] == {"kernel_id": page.kernel_id, "snapshot_id": ""}
    assert document["to"]["snapshot_id"]
    (change,) = document["comparison"]["changed"]
    assert (change["then"]["summary"], change["now"]["summary"]) == ("42", "41")
    # Of two snapshots, also while the kernel has no process.
    gpuckpt("suspend", "train.ipynb")
    assert "41 -> 42" in gpuckpt("diff", "before", "train").stdout


def test_a_busy_kernel_is_not_compared(server, gpuckpt, eventually):
    page = server.open("train.ipynb")
    page.run("import os, time; x = 1")
    gpuckpt("save", "train")
    page.execute("while not os.path.exists('end'): time.sleep(0.05)")
    eventually(lambda: server.get(f"api/kernels/{page.kernel_id}")["execution_state"] == "busy")
    done = gpuckpt("diff", "latest", status=6)
    assert "Hint: Wait until its cell has ended." in done.stderr
    (server.root / "end").touch()


def test_a_branch_has_the_state_of_now_and_of_a_snapshot(server, gpuckpt):
    page = server.open("train.ipynb")
    page.run("x = 41")
    gpuckpt("save", "train", "--title", "first")
    page.run("x = 42")
    first = json.loads(gpuckpt("branch", "first", "--json").stdout)
    now = json.loads(gpuckpt("branch", page.kernel_id, "--json").stdout)
    for document, value in ((first, "41"), (now, "42")):
        assert document["operation"]["state"] == "succeeded"
        code = f"""
from jupyter_client import BlockingKernelClient
client = BlockingKernelClient()
client.load_connection_file({document["connection_file"]!r})
client.start_channels()
reply = client.execute("", user_expressions={{"it": "x"}}, reply=True, timeout=180)
print(reply["content"]["user_expressions"]["it"]["data"]["text/plain"])
"""
        said = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, timeout=300, check=False
        )
        assert said.stdout.decode().strip() == value, said.stderr
    assert page.run("print(x)") == "42\n"
    for document in (first, now):
        gpuckpt("end", document["operation"]["kernel_id"], "--yes")


@pytest.mark.slow
def test_a_kernel_that_is_ended_is_not_started_again(server, gpuckpt, eventually):
    page = server.open("train.ipynb")
    other = server.open("other.ipynb")
    page.run("x = 41")
    gpuckpt("save", "train")
    refused = gpuckpt("end", "train", status=2)
    assert "What it did since its last snapshot" in refused.stderr
    assert "--yes" in refused.stderr
    assert page.run("print(x)") == "41\n"
    done = gpuckpt("end", "train", "--yes")
    assert done.stdout == f"Ended kernel {page.kernel_id}.\n"
    eventually(lambda: [one["id"] for one in server.get("api/kernels")] == [other.kernel_id])
    assert [one["path"] for one in server.get("api/sessions")] == ["other.ipynb"]
    assert "AutoRestart" not in server.log()
    (listed,) = json.loads(gpuckpt("ps", "--json").stdout)["kernels"]
    assert listed["kernel_id"] == other.kernel_id
    # Its snapshot is there, and brings it back.
    gpuckpt("resume", "train")
    assert "train.ipynb" in gpuckpt("ps").stdout
    gpuckpt("end", "train", "--yes")


@pytest.mark.slow
def test_titled_and_pinned_snapshots_are_deleted_only_when_asked_for(server, gpuckpt):
    page = server.open("train.ipynb")
    page.run("x = 1")
    gpuckpt("save", "train", "--title", "keep this")
    gpuckpt("unpin", "keep this")
    gpuckpt("save", "train")
    refused = gpuckpt("rm", "keep", "latest", status=2)
    assert "'keep this'" in refused.stderr
    assert "of which 1 is pinned or titled" in refused.stderr
    assert "--yes" in refused.stderr
    assert "keep this" in gpuckpt("list").stdout
    gpuckpt("rm", "latest")
    gpuckpt("pin", "latest")
    gpuckpt("note", "latest", "--title", "")
    assert "which is pinned or titled" in gpuckpt("rm", "latest", status=2).stderr
    gpuckpt("rm", "latest", "--yes")
    assert gpuckpt("list").stdout == "No snapshots.\n"


def test_the_disk_use_has_the_numbers_of_the_page(server, gpuckpt):
    page = server.open("train.ipynb")
    page.run("data = bytes(10_000_000)")
    gpuckpt("save", "train")
    store = json.loads(gpuckpt("stats", "--json").stdout)["store"]
    shown = server.get("api/gpuckpt/store")
    for name in ("raw_bytes", "unique_bytes", "stored_bytes", "by_name"):
        assert store[name] == shown[name]
    said = gpuckpt("stats").stdout
    assert said.startswith("1 snapshot in ")
    assert "Deduplication:  " in said
    assert any(line.startswith("train.ipynb  ") for line in said.splitlines())
