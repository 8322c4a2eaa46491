"""Other projects' MCP servers, whose agents know nothing of this package: their kernels keep their variables when they are culled."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import wait_for
from tests.tools.environments import with_packages

#: They install packages.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

#: Calls a tool of an MCP server for each line of input, and prints the text of the answer.
CLIENT = """
import asyncio, json, os, sys
from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client

async def main():
    command, *arguments = json.loads(sys.argv[1])
    server = StdioServerParameters(command=command, args=arguments, env=dict(os.environ))
    async with stdio_client(server) as streams, ClientSession(*streams[:2]) as session:
        await session.initialize()
        while line := await asyncio.to_thread(sys.stdin.readline):
            tool, given = json.loads(line)
            found = await session.call_tool(tool, given)
            print(json.dumps("".join(getattr(one, "text", "") for one in found.content)), flush=True)

asyncio.run(main())
"""


class Caller:
    """An agent that uses one of these servers."""

    def __init__(self, packages, env, *command):
        self._process = subprocess.Popen(
            [sys.executable, "-c", CLIENT, json.dumps(command)],
            env={**env, "PYTHONPATH": packages},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def call(self, tool, **arguments):
        """Call a tool; return the text of its answer."""
        self._process.stdin.write(json.dumps([tool, arguments]) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline() or '"the agent has ended"')

    def end(self):
        self._process.stdin.close()
        self._process.wait(60)
        self._process.stdout.close()


@pytest.fixture(scope="module")
def packages(tmp_path_factory):
    return with_packages(tmp_path_factory.mktemp("packages") / "env", "jupyter-mcp-server>=2.2,<3")


def test_jupyter_mcp_server_goes_on_after_its_kernel_was_culled(make_server, packages):
    server = make_server(
        "--MappingKernelManager.cull_idle_timeout=2",
        "--MappingKernelManager.cull_interval=1",
        "--MappingKernelManager.cull_connected=True",
        "--GpuCkptServer.idle_notice=0",
    ).start()
    page = server.open("work.ipynb")
    program = Path(packages).parents[2] / "bin" / "jupyter-mcp-server"
    url, token = f"http://127.0.0.1:{server.port}", server.token
    where = ["--jupyter-url", url, "--jupyter-token", token]
    agent = Caller(packages, server.env, str(program), "start", "--transport", "stdio", *where)
    try:
        run = {"kernel_id": page.kernel_id, "timeout": 60}
        first = agent.call("execute_code", code="x = 41; print('set')", **run)
        assert "set" in first, first
        for turn in range(2):
            wait_for(lambda: server.kernel(page.kernel_id)["state"] == "suspended")
            answer = agent.call("execute_code", code="x += 1; print('x is', x)", **run)
            assert f"x is {42 + turn}" in answer, answer
    finally:
        agent.end()
