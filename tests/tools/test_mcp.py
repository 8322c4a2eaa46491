"""The tools over real MCP, by standard input and output, with the kernels of a Jupyter server."""

import asyncio
import json

import pytest

from tests.tools.scripted_agent import ToolFailed, agent

NOTEBOOK = {"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}


@pytest.fixture
def server(clean_server):
    return clean_server


@pytest.fixture
def page(server):
    (server.root / "work.ipynb").write_text(json.dumps(NOTEBOOK))
    return server.open("work.ipynb")


@pytest.fixture
def with_agent(server):
    """Return a function that runs an agent's work to its end."""

    def run(work, *options, env=None):
        async def scenario():
            async with agent(env or server.env, *options) as connected:
                return await asyncio.wait_for(work(connected), 300)

        return asyncio.run(scenario())

    return run


def test_an_agent_tries_several_ways_and_keeps_the_best(server, page, with_agent):
    page.run("x = 1")

    async def work(agent):
        (listed,) = (await agent.call("list_sessions"))["sessions"]
        assert (listed["session"], listed["name"]) == (page.kernel_id, "work.ipynb")
        saved = await agent.call("save", session="work.ipynb", title="start")
        tried = await agent.call(
            "try_each",
            state=saved["snapshot"],
            codes=["x += 1; print(x)", "x += 2; print(x)", "1/0"],
        )
        statuses = [one["status"] for one in tried["tries"]]
        assert statuses == ["ok", "ok", "error"]
        assert [one["output"] for one in tried["tries"][:2]] == ["2\n", "3\n"]
        assert tried["tries"][2]["error"] == "ZeroDivisionError: division by zero"
        first, second = (one["session"] for one in tried["tries"][:2])
        found = await agent.call("compare", first=first, second=second)
        assert [one.split(":")[0] for one in found["changed"]] == ["x"]
        assert len((await agent.call("list_sessions"))["sessions"]) == 3
        await agent.call("end_branch", branch=first)
        kept = await agent.call("keep_branch", branch=second)
        assert kept["session"] == page.kernel_id
        return saved, kept

    saved, kept = with_agent(work)
    # The page, which was connected all the time, goes on in the branch's state.
    assert page.run("print(x)") == "3\n"
    rows = server.get("api/sessions")
    assert [(row["path"], row["kernel"]["id"]) for row in rows] == [("work.ipynb", page.kernel_id)]
    by_id = {one["snapshot_id"]: one for one in server.get("api/gpuckpt/snapshots")["snapshots"]}
    assert {one["cause"] for one in by_id.values()} == {"tool"}
    assert not any(one["pinned"] for one in by_id.values())
    assert by_id[saved["snapshot"]]["title"] == "start"
    # A person takes it back.
    server.do("roll_back", page.kernel_id, snapshot_id=kept["saved_before"])
    assert page.run("print(x)") == "1\n"
