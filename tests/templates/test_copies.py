"""Kernels that are copies of a template's: what they have from the template, and what is their own."""

import json
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import httpx
import nbformat
import pexpect
import pytest
from jupyter_client.provisioning.factory import KernelProvisionerFactory

from jupyter_gpuckpt.client import Client
from jupyter_gpuckpt.sessions import Sessions
from jupyter_gpuckpt.wire import calls
from tests.blocking_clients import printed
from tests.conftest import wait_for
from tests.ports import free_port

from .conftest import PLANTED, Templates, is_copy, started
from .memory import in_memory

RECIPE = """
import random, ssl, tempfile, multiprocessing, os, pathlib
import numpy as np
data = np.arange(10)
def total():
    return int(data.sum())
made_in = os.getcwd()
os.environ["SET_BY_THE_RECIPE"] = "1"
"""


@pytest.fixture(scope="module")
def _made(module_daemon_env, tmp_path_factory):
    templates = Templates(module_daemon_env, tmp_path_factory.mktemp("recipes"))
    templates.create("ready", RECIPE)
    templates.create(
        "seeded", "import random\nimport numpy as np\nrandom.seed(1)\nnp.random.seed(1)"
    )


@pytest.fixture(autouse=True)
def _ready(_made, ours):
    """Let every test have both templates."""


FACTS = """
import json, os, sys
shell = get_ipython()
print(json.dumps({
    "total": total(), "cwd": os.getcwd(), "umask": os.umask(0o27), "argv": sys.argv,
    "original": sys.orig_argv, "in": In[:-1], "out": dict(Out), "count": shell.execution_count,
    "environment": dict(os.environ), "session": globals().get("__session__"),
    "authkey": multiprocessing.current_process().authkey.hex(),
    "temporary": next(tempfile._get_candidate_names()),
    "random": random.random(), "numpy": np.random.rand(), "secret": ssl.RAND_bytes(8).hex(),
    "history": shell.history_manager.session_number, "ident": shell.kernel.ident,
    "message": shell.kernel.session.session, "names": sorted(n for n in globals() if n[0] != "_"),
}))
"""


def facts(client):
    return json.loads(printed(client, FACTS))


def test_a_copy_is_a_new_kernel(tmp_path, monkeypatch):
    monkeypatch.setenv("JPY_SESSION_NAME", "/a/notebook.ipynb")
    monkeypatch.setenv("OF_THIS_LAUNCH", "1")
    before = os.umask(0o27)
    try:
        with started("ready", cwd=str(tmp_path)) as (manager, client):
            assert is_copy(manager)
            found = facts(client)
    finally:
        os.umask(before)
    assert found["total"] == 45
    assert found["cwd"] == str(tmp_path)
    assert found["umask"] == 0o27
    assert manager.connection_file in found["argv"]
    assert manager.connection_file in found["original"]
    assert found["in"] == [""]
    assert found["out"] == {}
    assert found["session"] == "/a/notebook.ipynb"
    own = {"SET_BY_THE_RECIPE", "JPY_PARENT_PID"}
    assert found["environment"]["SET_BY_THE_RECIPE"] == "1"
    assert found["environment"]["OF_THIS_LAUNCH"] == "1"
    # ipykernel and libraries set some themselves.
    with started("python3", cwd=str(tmp_path)) as (_, stock):
        variables = json.loads(
            printed(stock, "import os, json; print(json.dumps(dict(os.environ)))")
        )
    assert found["environment"].keys() - own == variables.keys() - own


def test_the_count_and_the_history_begin_as_in_any_kernel():
    code = "print([get_ipython().execution_count, len(In), sorted(Out), _, __])"
    with started("ready") as (_, client), started("python3") as (_, stock):
        for cell in ("40 + 2", "43"):
            client.execute_interactive(cell)
            stock.execute_interactive(cell)
        assert printed(client, code) == printed(stock, code)


def test_no_copy_has_a_secret_of_the_builder():
    with started("ready") as (manager, client):
        assert facts(client)["environment"].get("AWS_SECRET_ACCESS_KEY") is None
        pid = manager.provisioner.pid
        assert PLANTED.encode() not in Path(f"/proc/{pid}/environ").read_bytes()
        assert not in_memory(pid, PLANTED.encode())
        # The search finds what is there.
        assert in_memory(pid, b"SET_BY_THE_RECIPE")


def test_no_two_copies_are_alike():
    with ExitStack() as stack:
        kernels = [stack.enter_context(started("ready")) for _ in range(3)]
        found = [facts(client) for _, client in kernels]
        # What they write to the history at the same time collides with nothing.
        told = [printed(client, "%history -g 1-5") for _, client in kernels]
        for _, client in kernels:
            printed(client, "get_ipython().history_manager.writeout_cache()")
    for name in (
        "authkey",
        "temporary",
        "random",
        "numpy",
        "secret",
        "history",
        "ident",
        "message",
    ):
        assert len({one[name] for one in found}) == len(found), name
    assert not any("unique" in text for text in told)


def test_generators_that_the_recipe_has_seeded_stay():
    code = "print(random.random(), np.random.rand())"
    with started("seeded") as (_, one), started("seeded") as (_, other):
        assert printed(one, code) == printed(other, code)


def test_a_restart_gives_the_same_start():
    with started("ready") as (manager, client):
        first = facts(client)
        printed(client, "data[:] = 0")
        manager.restart_kernel(now=True)
        client.wait_for_ready(timeout=60)
        assert is_copy(manager)
        second = facts(client)
    assert second["total"] == 45
    assert second["in"] == [""]
    assert {first["random"], first["authkey"]}.isdisjoint({second["random"], second["authkey"]})


@pytest.mark.slow
def test_a_copy_is_interrupted_and_shut_down():
    with started("ready") as (manager, client):
        request = client.execute("import time\nprint('begun')\ntime.sleep(1000)")
        wait_for(lambda: "begun" in str(client.get_iopub_msg(timeout=60)["content"]))
        manager.interrupt_kernel()
        reply = client.get_shell_msg(timeout=60)
        assert reply["parent_header"]["msg_id"] == request
        assert reply["content"]["ename"] == "KeyboardInterrupt"
        manager.shutdown_kernel()
        assert not manager.is_alive()
    with Client.connect() as daemon:
        assert daemon.send(calls.kernels()) == []


@pytest.mark.slow
def test_a_copy_is_suspended_and_branched_like_any_kernel():
    with started("ready") as (manager, client), Sessions() as sessions:
        printed(client, "data[0] = 100")
        result = sessions.suspend(manager.kernel_id)
        sessions.resume(manager.kernel_id)
        client.wait_for_ready(timeout=60)  # its new key is still its key
        assert printed(client, "print(total())") == "145\n"
        branch = sessions.branch(result.snapshot_id)
        beside = type(client)(connection_file=str(branch.connection_file))
        beside.load_connection_file()
        beside.start_channels()
        beside.wait_for_ready(timeout=60)
        assert "145\n" in printed(beside, "print(total())")
        beside.stop_channels()
        with Client.connect() as daemon:
            daemon.send(calls.kill(branch.kernel.kernel_id))
        for snapshot in sessions.snapshots(manager.kernel_id):
            with Client.connect() as daemon:
                daemon.send(calls.delete_snapshot(snapshot.snapshot_id))


@pytest.fixture
def notebook(tmp_path):
    path = tmp_path / "notebook.ipynb"
    cells = [nbformat.v4.new_code_cell("print(total(), made_in != '')")]
    metadata = {"kernelspec": {"name": "ready", "display_name": "Ready", "language": "python"}}
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=metadata), path)
    return path


@pytest.mark.parametrize(
    "words",
    [
        ["-c", "from nbclient.cli import main; main()", "--inplace", "{notebook}"],
        ["-m", "papermill", "{notebook}", "{notebook}"],
        ["-m", "papermill", "--engine", "gpuckpt", "{notebook}", "{notebook}"],
        ["-m", "jupyter_gpuckpt.cli", "execute", "{notebook}", "-o", "{output}"],
    ],
    ids=["nbclient", "papermill", "engine", "execute"],
)
@pytest.mark.slow
def test_programs_use_a_template_by_its_kernelspec(words, notebook, ours):
    output = notebook.with_name("output.ipynb")
    command = [one.format(notebook=notebook, output=output) for one in words]
    done = subprocess.run(
        [sys.executable, *command],
        env=ours,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "is no copy" not in done.stderr
    written = nbformat.read(output if output.exists() else notebook, 4)
    assert "45 True" in str(written.cells[-1].outputs)
    assert "recipe" not in str(written.cells[-1].outputs)


@pytest.mark.slow
def test_the_console_uses_a_template(ours):
    console = pexpect.spawn(
        sys.executable,
        ["-m", "jupyter_console", "--simple-prompt", "--kernel", "ready"],
        env={**ours, "TERM": "dumb"},
        encoding="utf-8",
        timeout=180,
    )
    try:
        console.expect("In \\[1\\]")
        console.sendline("assert total() == 45; open('/dev/null')")
        console.expect("In \\[2\\]")
        console.sendline("exit")
        console.expect(pexpect.EOF)
    finally:
        console.close(force=True)
    KernelProvisionerFactory.clear_instance()


@pytest.mark.slow
def test_voila_uses_a_template(ours, notebook, tmp_path):
    pytest.importorskip("voila")
    port = free_port()
    log = tmp_path / "voila.log"
    words = ["--no-browser", f"--port={port}", "--Voila.ip=127.0.0.1", str(notebook)]
    with (
        log.open("wb") as out,
        subprocess.Popen(
            [sys.executable, "-m", "voila", *words], env=ours, stdout=out, stderr=out
        ) as process,
    ):
        try:
            wait_for(lambda: f"127.0.0.1:{port}" in log.read_text(), said=log.read_text)
            httpx.get(f"http://127.0.0.1:{port}/", timeout=120).raise_for_status()
            # Its page executes the cells.
            with Client.connect() as client:
                [kernel] = client.send(calls.kernels())
            assert kernel.moved_ports
            assert "is no copy" not in log.read_text()
        finally:
            process.terminate()
            process.wait(60)
