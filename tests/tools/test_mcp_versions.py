"""The tools with both major versions of mcp, each in an environment of its own, on both sides."""

import json
import os
import subprocess
import sys

import pytest

from tests.tools.environments import with_packages

#: They install packages.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

CLIENT = """
import asyncio, json, os, sys
from importlib.metadata import version
from tests.tools.scripted_agent import ToolFailed, agent

async def main():
    async with agent(dict(os.environ)) as connected:
        listed = await connected.call("list_sessions")
        ran = await connected.call("run_in", session="work.ipynb", code="x + 1")
        saved = await connected.call("save", session="work.ipynb")
        try:
            await connected.call("restore", snapshot="none")
        except ToolFailed as error:
            failed = str(error)
        # A call that is canceled interrupts its code.
        code = "open('begun', 'w').close(); import time; time.sleep(600)"
        sleeps = {"session": "work.ipynb", "code": code}
        running = asyncio.ensure_future(connected.call("run_in", **sleeps, timeout_seconds=900))
        while not os.path.exists(os.path.join(sys.argv[1], "begun")):
            await asyncio.sleep(0.1)
        await connected.cancel(running)
        after = await connected.call("run_in", session="work.ipynb", code="x")
        schema = (await connected.tools())["try_each"]
    print(json.dumps([version("mcp"), listed, ran, saved, failed, after, connected.told,
        getattr(schema, "inputSchema", None) or schema.input_schema]))

asyncio.run(main())
"""


@pytest.mark.parametrize("requirement", ["mcp>=1.24,<2", "mcp>=2,<3"])
def test_the_tools_work_with_this_version(requirement, clean_server, tmp_path):
    server = clean_server
    packages = with_packages(tmp_path / "env", requirement)
    page = server.open("work.ipynb")
    page.run("x = 1")
    done = subprocess.run(
        [sys.executable, "-c", CLIENT, server.root],
        env={**server.env, "PYTHONPATH": os.pathsep.join((packages, os.getcwd()))},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    version, listed, ran, saved, failed, after, told, schema = json.loads(done.stdout)
    assert version.startswith(requirement[5])
    assert [one["name"] for one in listed["sessions"]] == ["work.ipynb"]
    assert (ran["status"], ran["output"]) == ("ok", "2\n")
    assert saved["snapshot"] in {
        one["snapshot_id"] for one in server.get("api/gpuckpt/snapshots")["snapshots"]
    }
    assert "There is no snapshot 'none'. list_snapshots shows the snapshots" in failed
    assert after["output"] == "1\n"
    assert any(text.startswith("save: ") for text in told)
    assert schema["required"] == ["state", "codes"]
    assert schema["properties"]["codes"] == {
        "items": {"type": "string"},
        "title": "Codes",
        "type": "array",
    }
    assert schema["properties"]["then"]["enum"] == ["keep", "save", "end"]
