"""The tools in a Jupyter server, served by jupyter-server-mcp."""

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests import uids
from tests.ports import free_port
from tests.server.conftest import Server
from tests.tools.environments import with_packages

#: They install packages.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

NOTEBOOK = {"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
TOKEN = "a-token-of-tools"
CHANGES = [
    ("save", {"session": "work.ipynb"}),
    ("run_in", {"session": "work.ipynb", "code": "print(x)"}),
    ("suspend", {"session": "work.ipynb"}),
]


@pytest.fixture(scope="module")
def packages(tmp_path_factory):
    return with_packages(tmp_path_factory.mktemp("packages") / "env", "jupyter-server-mcp>=0.3")


@pytest.fixture
def start(daemon_env, packages, tmp_path):
    """Return a function that starts a server with jupyter-server-mcp, and returns it with a function that calls its tools."""
    servers = []

    def started(*options):
        port = free_port()
        env = {**daemon_env, "PYTHONPATH": os.pathsep.join((packages, os.getcwd()))}
        server = Server(
            tmp_path,
            env,
            "--ServerApp.jpserver_extensions=jupyter_server_mcp=True",
            f"--MCPExtensionApp.mcp_port={port}",
            *options,
        )
        servers.append(server)
        server.start()
        deadline = time.monotonic() + 60
        while True:
            try:
                socket.create_connection(("localhost", port)).close()
                break
            except OSError:
                assert time.monotonic() < deadline, server.log()
                time.sleep(0.1)
        (server.root / "work.ipynb").write_text(json.dumps(NOTEBOOK))
        page = server.open("work.ipynb")
        page.run("x = 5")

        def call(*calls, token="", uid=""):
            done = subprocess.run(
                [
                    sys.executable,
                    Path(__file__).with_name("http_agent.py"),
                    f"http://localhost:{port}/mcp",
                    token,
                    str(uid),
                ],
                input=json.dumps(calls),
                env=env,
                capture_output=True,
                text=True,
                timeout=120,
                check=False,
            )
            assert done.returncode == 0, done.stderr + server.log()
            return json.loads(done.stdout)

        return server, call

    yield started
    for server in servers:
        server.stop()


def test_without_a_setting_the_tools_only_read(start):
    server, call = start()
    found = call(("list_sessions", {}), token=TOKEN)
    assert set(found["tools"]) >= {"list_sessions", "list_snapshots", "compare", "read_output"}
    assert not set(found["tools"]) & {"save", "restore", "branch", "run_in", "try_each"}
    ((failed, text),) = found["answers"]
    assert not failed
    assert [one["name"] for one in json.loads(text)["sessions"]] == ["work.ipynb"]
    assert server.get("api/gpuckpt/snapshots")["snapshots"] == []


def test_with_its_token_an_agent_changes_kernels_and_without_it_does_not(start):
    server, call = start(f"--GpuCkptServer.tools_token={TOKEN}")
    for token in ("", "wrong"):
        for failed, text in call(*CHANGES, token=token)["answers"]:
            assert failed
            assert "[access_denied]" in text
            assert "c.GpuCkptServer.tools_token" in text
    assert server.get("api/gpuckpt/snapshots")["snapshots"] == []
    answers = call(*CHANGES, token=TOKEN)["answers"]
    assert not any(failed for failed, _ in answers), answers
    assert json.loads(answers[1][1])["output"] == "5\n"
    # An error of a tool reaches the agent with its cause and hint.
    ((failed, text),) = call(("restore", {"snapshot": "none"}), token=TOKEN)["answers"]
    assert failed
    assert "There is no snapshot 'none'" in text
    assert "list_snapshots shows the snapshots" in text


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_another_user_of_the_machine_gets_nothing(start):
    server, call = start(f"--GpuCkptServer.tools_token={TOKEN}")
    reading = [
        ("list_sessions", {}),
        ("list_snapshots", {}),
        ("compare", {"first": "work.ipynb"}),
        ("read_output", {"output_id": "a"}),
    ]
    # Even one who has learned the token.
    found = call(*reading, *CHANGES, token=TOKEN, uid=uids.first())
    for failed, text in found["answers"]:
        assert failed
        assert "[access_denied]" in text
        assert "work.ipynb" not in text
    assert server.get("api/gpuckpt/snapshots")["snapshots"] == []


#: The state with the bug, in memory and in a file of the folder, and what leads on at each level.
SETUP = """
import pathlib
def change(name, code):
    lines = [one for one in pathlib.Path("pipeline.py").read_text().splitlines() if not one.startswith(name)]
    pathlib.Path("pipeline.py").write_text(chr(10).join([*lines, f"{name} = {code}"]) + chr(10))
def score():
    made = {}
    exec(pathlib.Path("pipeline.py").read_text(), made)
    return sum([made["load"] is list, made["total"] is sum])
pathlib.Path("pipeline.py").write_text("load = None" + chr(10) + "total = None" + chr(10))
"""
RIGHT = {"load": "list", "total": "sum"}
WRONG = ["change({step!r}, 'len'); print(score())", "1 / 0", "import os; os._exit(1)"]


def test_an_agent_searches_with_files_by_this_door_too(start):
    server, call = start(f"--GpuCkptServer.tools_token={TOKEN}")

    def done(tool, **arguments):
        ((failed, text),) = call((tool, arguments), token=TOKEN)["answers"]
        assert not failed, text
        return json.loads(text)

    done("run_in", session="work.ipynb", code=SETUP)
    front = done("save", session="work.ipynb")["snapshot"]
    for step, right in RIGHT.items():
        codes = [one.format(step=step) for one in WRONG]
        codes.append(
            f"open('found', 'w').write({step!r}); change({step!r}, {right!r}); print(score())"
        )
        tries = done("try_each", state=front, codes=codes, then="save")["tries"]
        assert [one["status"] for one in tries] == ["ok", "error", "kernel died", "ok"]
        front = max((int(one["output"]), one["snapshot"]) for one in tries if "snapshot" in one)[1]
    assert not (server.root / "found").exists()
    restored = done("restore", snapshot=front)
    assert done("run_in", session="work.ipynb", code="print(score())")["output"] == "2\n"
    assert (server.root / "found").read_text() == "total"
    done("restore", snapshot=restored["saved_before"])
    assert not (server.root / "found").exists()
    assert [one["name"] for one in done("list_sessions")["sessions"]] == ["work.ipynb"]
