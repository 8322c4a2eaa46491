"""The agent of 0.1.0, which comes back in every kernel that was saved with it, works with today's server.

When one of these fails, kernels of older snapshots would lose output, comms or variables. Let `server/kernels/agent_calls.py` accept
the older answers, and send requests that older agents understand (they ignore fields that they do not know). Do not make
`agent.txt` of a released version anew.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from jupyter_server.services.kernels.kernelmanager import ServerKernelManager

from jupyter_gpuckpt.client.agent_code import AGENT_REQUEST
from jupyter_gpuckpt.server.kernels import agent_calls
from jupyter_gpuckpt.server.messages.probe import ask
from tests.conftest import wait_for

SECONDS = 120.0
VERSIONS = sorted(path.parent for path in Path(__file__).parent.glob("*/agent.txt"))


@asynccontextmanager
async def kernel_with(text: str) -> AsyncIterator[tuple[ServerKernelManager, Cells]]:
    """Yield a kernel in which an agent runs, and a page of it."""
    manager = ServerKernelManager(kernel_name="python3")
    await manager.start_kernel()
    client = manager.client()
    client.start_channels()
    try:
        await client.wait_for_ready(timeout=SECONDS)
        content = {"code": text, "silent": True, "store_history": False}
        reply = await ask(manager, "control", "execute_request", content, SECONDS)
        assert reply["content"]["status"] == "ok", reply
        yield manager, Cells(client)
    finally:
        client.stop_channels()
        await manager.shutdown_kernel(now=True)
        manager.context.destroy(linger=0)


class Cells:
    """What a page runs and hears."""

    def __init__(self, client):
        self._client = client

    async def run(self, code):
        """Run a cell; return what it printed."""
        return await self.heard(self._client.execute(code))

    def begin(self, code):
        return self._client.execute(code)

    async def heard(self, request):
        printed = ""
        while True:
            message = await self._client.get_iopub_msg(timeout=SECONDS)
            if message["parent_header"].get("msg_id") != request:
                continue
            printed += message["content"].get("text", "")
            if message["content"].get("execution_state") == "idle":
                return printed

    async def replied(self, request):
        while (reply := await self._client.get_shell_msg(timeout=SECONDS))["parent_header"][
            "msg_id"
        ] != request:
            pass
        return reply["content"]["status"]

    async def heard_before_a_probe(self, manager):
        """Return the ids of requests with messages before the agent's answer to a probe."""
        assert await ask(manager, "control", AGENT_REQUEST, {"op": "probe"}, SECONDS)
        heard = set()
        while (message := await self._client.get_iopub_msg(timeout=SECONDS))[
            "msg_type"
        ] != "gpuckpt_probe":
            heard.add(message["parent_header"].get("msg_id"))
        return heard


@pytest.mark.parametrize("version", VERSIONS, ids=lambda path: path.name)
def test_an_agent_of_an_older_snapshot_does_all_that_the_server_asks(
    version, tmp_path, monkeypatch
):
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    text = (version / "agent.txt").read_text()

    async def talk():
        async with kernel_with(text) as (manager, cells):
            assert await agent_calls.state(manager) == agent_calls.AgentState(0, 0, uses_gpu=False)
            await cells.run(
                "x = list(range(1000)); seen = []\n"
                "ip = get_ipython()\n"
                "ip.events.register('on_save', lambda: seen.append('save'))\n"
                "ip.events.register('on_resume', lambda: seen.append('resume'))\n"
                "from comm import create_comm; opened = create_comm('of_the_test')"
            )
            found = await agent_calls.state(manager)
            assert (found.on_save, found.on_resume) == (1, 1)
            assert await agent_calls.call_on_save(manager, found)
            listed = await agent_calls.variables(manager, 1.0)
            assert {"x", "seen"} <= {one.name for one in listed.listed}
            assert listed.fingerprints["x"]
            assert await agent_calls.trim(manager, 0.1) >= 0
            assert await agent_calls.switch_peer_access_off(manager, busy=False) == (True, False)
            assert await agent_calls.switch_peer_access_on(manager)

            comms = await agent_calls.prepare(manager)
            assert "of_the_test" in comms.targets.values()
            ended = tmp_path / "ended"
            kept = cells.begin(f"print('kept'); open({str(ended)!r}, 'w').close()")
            await asyncio.to_thread(wait_for, ended.exists, SECONDS)
            assert kept not in await cells.heard_before_a_probe(manager)
            await agent_calls.resumed(
                manager,
                {"COMPAT_TEST": "new", "OTHER": "new"},
                {},
                renewed=["COMPAT_*"],
                branched=False,
                gpu_is_back=True,
            )
            await agent_calls.call_on_resume(manager)
            assert await agent_calls.flush(manager)
            assert await cells.heard(kept) == "kept\n"
            assert await cells.replied(kept) == "ok"
            told = "import os; print(seen, os.environ['COMPAT_TEST'], os.environ.get('OTHER'))"
            assert await cells.run(told) == "['save', 'resume'] new None\n"
            messages, _ = await agent_calls.messages_after(manager, "unknown", [kept])
            assert any(b"kept" in part for message in messages for part in message)
            # The very reply that this page has had already.
            with pytest.raises(ValueError, match="Duplicate Signature"):
                await cells.replied(kept)

    asyncio.run(asyncio.wait_for(talk(), 4 * SECONDS))
