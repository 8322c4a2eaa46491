"""All kernels of a server are suspended within a time: what is saved first, and what happens to what does not make it."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.conftest import wait_for


@pytest.fixture
def server(clean_server):
    return clean_server


def suspend_all(server, **body):
    return server.request("POST", "api/gpuckpt/suspend_all", json=body).json()


def hold(page, megabytes):
    """Make a kernel hold memory that cannot be compressed."""
    code = f"x = {megabytes}; held = numpy.random.default_rng(x).bytes(x * 1_000_000)"
    assert page.run(f"import numpy; {code}; print(len(held))") == f"{megabytes}000000\n"


def test_all_kernels_are_suspended_smallest_first_and_the_next_server_lists_them(server):
    pages = {size: server.open(f"{size}.ipynb") for size in (80, 2, 40)}
    for size, page in pages.items():
        hold(page, size)
    report = suspend_all(server, within=100)
    assert [kernel["name"] for kernel in report["kernels"]] == [
        "2.ipynb",
        "40.ipynb",
        "80.ipynb",
    ]
    for kernel in report["kernels"]:
        assert (kernel["saved"], kernel["error"]) == (True, None)
        assert kernel["size_bytes"] > int(kernel["name"].split(".")[0]) * 1_000_000
        assert server.kernel(kernel["kernel_id"])["snapshot_id"] == kernel["snapshot_id"]
        assert server.kernel(kernel["kernel_id"])["state"] == "suspended"
    # Those that are suspended already are saved too.
    again = suspend_all(server)
    assert all(kernel["saved"] and kernel["seconds"] == 0 for kernel in again["kernels"])
    assert len(again["kernels"]) == 3
    server.stop()
    server.start()
    for size, page in pages.items():
        assert server.page(page.kernel_id).run("print(x, len(held))") == f"{size} {size}000000\n"


@pytest.mark.slow  # tests/unit reaches the deadline in every run
def test_one_that_does_not_make_the_deadline_runs_on_as_if_nothing_had_been(make_server):
    server = make_server("--GpuCkptDaemon.threads=1").start()
    small, large = server.open("small.ipynb"), server.open("large.ipynb")
    small.run("x = 41")
    hold(large, 600)
    began = time.monotonic()
    report = suspend_all(server, within=0.35)
    assert time.monotonic() - began < 100
    by_name = {kernel["name"]: kernel for kernel in report["kernels"]}
    late = by_name["large.ipynb"]
    assert (late["saved"], late["error"]["code"]) == (False, "operation_cancelled")
    assert "time" in late["error"]["message"]
    assert late["error"]["hint"]
    # The page is served as before, and nothing half done is left.
    assert large.run("print(x, len(held))") == "600 600000000\n"
    assert server.kernel(large.kernel_id)["state"] == "running"
    assert server.get(f"api/gpuckpt/snapshots?kernel_id={large.kernel_id}") == {"snapshots": []}
    assert small.run("print(x + 1)") == "42\n"


def test_output_of_busy_kernels_is_not_lost(server):
    pages = [server.open(f"{number}.ipynb") for number in range(2)]
    for page in pages:
        page.run("import time")
        page.cell = page.execute("for i in range(150): print(i); time.sleep(0.01)")
        page.wait_for(lambda m: m["msg_type"] == "stream")
    report = suspend_all(server, within=100)
    assert all(kernel["saved"] for kernel in report["kernels"])
    for page in pages:
        server.do("resume", page.kernel_id)
        assert page.output(page.cell).split() == [str(number) for number in range(150)]


def test_a_cell_that_runs_when_a_hook_suspends_everything_goes_on_under_the_next_server(server):
    page = server.open()
    page.run("import time, pathlib; said = []")
    page.execute("while not pathlib.Path('enough').exists(): said.append(1); time.sleep(0.01)")
    wait_for(lambda: server.get(f"api/kernels/{page.kernel_id}")["execution_state"] == "busy")
    # Beside the server, as before an instance is reclaimed.
    hook = [sys.executable, "-m", "jupyter_gpuckpt.cli", "suspend", "--all", "--within", "250s"]
    subprocess.run(hook, env=server.env, stdin=subprocess.DEVNULL, timeout=400, check=True)
    wait_for(lambda: server.kernel(page.kernel_id)["state"] == "suspended")
    server.stop()
    server.start()
    # Nobody asked for it: it was busy.
    wait_for(lambda: server.kernel(page.kernel_id)["state"] == "running")
    (server.root / "enough").touch()
    again = server.page(page.kernel_id)
    assert int(again.run("print(len(said))")) > 0


def test_without_time_nothing_is_touched(server):
    page = server.open()
    page.run("x = 41")
    (kernel,) = suspend_all(server, within=0)["kernels"]
    assert (kernel["saved"], kernel["error"]["code"]) == (False, "operation_cancelled")
    assert server.kernel(page.kernel_id)["state"] == "running"
    assert page.run("print(x + 1)") == "42\n"


def test_a_kernel_that_is_not_managed_is_named_with_the_reason(server_with):
    server = server_with("--GpuCkptServer.excluded_kernelspecs=plain")
    folder = Path(server.env["JUPYTER_DATA_DIR"]) / "kernels" / "plain"
    folder.mkdir(parents=True)
    spec = {
        "argv": [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"],
        "display_name": "Plain",
        "language": "python",
    }
    (folder / "kernel.json").write_text(json.dumps(spec))
    ours, plain = server.open("ours.ipynb"), server.open("plain.ipynb", kernel="plain")
    for page in (ours, plain):
        page.run("x = 41")
    by_id = {one["kernel_id"]: one for one in suspend_all(server, within=100)["kernels"]}
    assert by_id[ours.kernel_id]["saved"]
    refused = by_id[plain.kernel_id]
    assert (refused["saved"], refused["error"]["code"]) == (False, "kernel_not_managed")
    assert "excluded_kernelspecs" in refused["error"]["message"]
    assert plain.run("print(x + 1)") == "42\n"


def test_a_body_that_makes_no_sense_is_400(server):
    for body in ('{"within": -1}', '{"within": "soon"}', '{"seconds": 1}', "[]"):
        status, answer = server.refused("POST", "suspend_all", content=body)
        assert (status, answer["code"]) == (400, "configuration"), body
