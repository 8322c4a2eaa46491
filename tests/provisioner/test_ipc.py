"""Kernels whose clients reach them through unix sockets (`KernelManager.transport = "ipc"`)."""

import json
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import nbformat
import pytest
from jupyter_client.blocking import BlockingKernelClient
from jupyter_client.manager import KernelManager

from jupyter_gpuckpt.client import Client
from jupyter_gpuckpt.sessions import Sessions
from jupyter_gpuckpt.wire import calls
from jupyter_gpuckpt.wire.states import KernelState
from tests.conftest import wait_for

TIMEOUT = 120

#: Executes the notebook of its argument in place.
RUN = """
import sys, nbformat
from nbclient import NotebookClient
from traitlets.config import Config
[path] = sys.argv[1:]
notebook = nbformat.read(path, 4)
NotebookClient(notebook, config=Config(KernelManager={"transport": "ipc"})).execute()
nbformat.write(notebook, path)
"""


@pytest.fixture
def daemon_env(module_daemon_env):
    """Return the environment of one daemon for all tests: each leaves it without kernels."""
    return dict(module_daemon_env)


@contextmanager
def client_of(connection_file):
    client = BlockingKernelClient(connection_file=str(connection_file))
    client.load_connection_file()
    client.start_channels()
    try:
        yield client
    finally:
        client.stop_channels()


def printed(client, code):
    """Return what `code` prints. Nobody says when the subscription to the output is there again, so that is waited for first."""
    texts = []

    def output(message):
        if message["msg_type"] == "stream":
            texts.append(message["content"]["text"])

    client.wait_for_ready(timeout=TIMEOUT)
    reply = client.execute_interactive(code, output_hook=output, timeout=TIMEOUT)
    assert reply["content"]["status"] == "ok", reply["content"]
    return "".join(texts)


@pytest.fixture
def kernel(ours):
    manager = KernelManager(kernel_name="python3", transport="ipc")
    manager.start_kernel()
    yield manager
    manager.shutdown_kernel(now=True)


@pytest.fixture
def client(kernel):
    client = kernel.client()
    client.start_channels()
    yield client
    client.stop_channels()


def test_a_kernel_is_saved_suspended_and_resumed_under_its_connected_client(kernel, client):
    kernel_id = kernel.provisioner.kernel_id
    printed(client, "values = [1]")
    with Sessions() as sessions:
        sessions.save(kernel_id)
        # The client's connections are still the ones from before the save.
        assert printed(client, "values.append(2); print(values)") == "[1, 2]\n"
        for number in (3, 4):
            sessions.suspend(kernel_id)
            sessions.resume(kernel_id)
            printed(client, f"values.append({number})")
    assert printed(client, "print(values)") == "[1, 2, 3, 4]\n"


def test_branches_and_the_first_kernel_are_reached_each_for_itself(kernel, client):
    kernel_id = kernel.provisioner.kernel_id
    printed(client, "who = 'first'")
    with Sessions() as sessions:
        snapshot_id = sessions.save(kernel_id).snapshot_id
        branches = [sessions.branch(snapshot_id) for _ in range(2)]
        with (
            client_of(branches[0].connection_file) as one,
            client_of(branches[1].connection_file) as two,
        ):
            printed(one, "who = 'one'")
            printed(two, "who = 'two'")
            for suspended in (kernel_id, branches[0].kernel.kernel_id):
                sessions.suspend(suspended)
                sessions.resume(suspended)
            saying = {"first": client, "one": one, "two": two}
            for name, asked in saying.items():
                assert f"{name}\n" in printed(asked, "print(who)")
            # A branch that ends takes nothing from the others.
            two.shutdown()
            wait_for(lambda: len(sessions.list()) == 2)
            with client_of(branches[0].connection_file) as again:
                assert "one\n" in printed(again, "print(who)")
            with client_of(kernel.connection_file) as again:
                assert "first\n" in printed(again, "print(who)")
            with Client.connect() as daemon:
                daemon.send(calls.kill(branches[0].kernel.kernel_id))


def test_a_notebook_of_nbclient_goes_on_after_a_save(ours, tmp_path):
    path, gate = tmp_path / "notebook.ipynb", tmp_path / "gate"
    cells = [
        "x = 20",
        f"import os, time\nwhile not os.path.exists({str(gate)!r}): time.sleep(0.01)",
        "print(x + 1)",
    ]
    metadata = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    made = nbformat.v4.new_notebook(
        cells=[*map(nbformat.v4.new_code_cell, cells)], metadata=metadata
    )
    nbformat.write(made, path)
    with (
        subprocess.Popen([sys.executable, "-c", RUN, str(path)], env=ours) as runner,
        Sessions() as sessions,
    ):
        try:
            wait_for(lambda: any(kernel.state is KernelState.RUNNING for kernel in sessions.list()))
            [kernel] = sessions.list()
            sessions.save(kernel.kernel_id)
        finally:
            gate.touch()  # the runner would never end
        assert runner.wait(TIMEOUT) == 0
    assert json.loads(path.read_text())["cells"][-1]["outputs"][0]["text"] == ["21\n"]
    assert list(Path(ours["JUPYTER_RUNTIME_DIR"]).glob(f"kernel-{kernel.kernel_id}*")) == []
