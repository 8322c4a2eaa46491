"""A server whose kernels are reached through unix sockets (`KernelManager.transport = "ipc"`)."""

import json
from pathlib import Path

import pytest
from jupyter_client.blocking import BlockingKernelClient

from tests.blocking_clients import printed
from tests.server.test_time_travel import NOTEBOOK, branch


def test_kernels_are_saved_branched_and_woken_as_over_tcp(server_with):
    server = server_with("--KernelManager.transport=ipc")
    (server.root / "ipc.ipynb").write_text(json.dumps(NOTEBOOK))
    page = server.open("ipc.ipynb")
    page.run("import os; x = ['common']")
    snapshot_id = server.do("save", page.kernel_id)["result"]["snapshot_id"]
    other = branch(server, snapshot_id)
    page.run("x.append('first')")
    other.run("x.append('other')")
    for each in (page, other):
        server.do("suspend", each.kernel_id)
        # The cell wakes it, and its output is complete.
        name = each.run("print(x[-1])").strip()
        assert name == ("first" if each is page else "other")
        child = (
            f"pid = os.fork()\nif not pid:\n    print('{name}'); os._exit(0)\nos.waitpid(pid, 0)"
        )
        assert f"{name}\n" in each.run(child)
        file = each.run("from ipykernel import get_connection_file as f; print(f())").strip()
        told = json.loads(Path(file).read_text())
        assert told["transport"] == "ipc"
        assert each.kernel_id in told["ip"]
    folders = {
        Path(told["ip"]).parent for told in map(json.loads, map(Path.read_text, files_of(server)))
    }
    assert len(folders) == 2
    for each in (page, other):
        server.request("DELETE", f"api/kernels/{each.kernel_id}")
    assert not any(folder.exists() for folder in folders)


@pytest.mark.slow
def test_a_blocking_client_gets_the_output_of_its_first_cell_after_a_resume(server_with):
    server = server_with("--KernelManager.transport=ipc")
    page = server.open()
    page.run("pass")
    client = BlockingKernelClient(connection_file=str(next(files_of(server))))
    client.load_connection_file()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=60)
        assert printed(client, "x = 41; print(x)") == "41\n"
        server.do("suspend", page.kernel_id)
        assert page.run("x += 1; print(x)") == "42\n"
        assert printed(client, "x += 1; print(x)") == "43\n"
    finally:
        client.stop_channels()


def files_of(server):
    return Path(server.env["JUPYTER_RUNTIME_DIR"]).glob("kernel-*.json")
