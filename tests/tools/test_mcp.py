"""The tools over real MCP, by standard input and output, with the kernels of a Jupyter server."""

import asyncio
import json
from pathlib import Path

import pytest

from tests.conftest import wait_for
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


def test_each_tool_tells_the_cause_of_a_failure_and_what_can_be_done(server, page, with_agent):
    page.run("x = 1")
    calls = {
        "list_snapshots": ({"session": "no.ipynb"}, "There is no session", "list_sessions shows"),
        "compare": ({"first": "nothing"}, "no session and no snapshot", "list_snapshots show"),
        "read_output": ({"output_id": "none"}, "There is no output", "Run the code again"),
        "save": ({"session": "no.ipynb"}, "There is no session", "list_sessions shows"),
        "restore": ({"snapshot": "none"}, "There is no snapshot", "list_snapshots shows"),
        "branch": ({"state": "nothing"}, "no session and no snapshot", "list_snapshots show"),
        "suspend": ({"session": "no.ipynb"}, "There is no session", "list_sessions shows"),
        "resume": ({"session": "no.ipynb"}, "There is no session", "list_sessions shows"),
        "run_in": (
            {"session": "work.ipynb", "code": "1", "timeout_seconds": -1},
            "cannot run for -1",
            "Give 1 to 86400",
        ),
        "try_each": ({"state": "work.ipynb", "codes": []}, "0 pieces", "Give 1 to 64"),
        "keep_branch": ({"branch": "work.ipynb"}, "not a branch", "`branch` and `try_each` make"),
        "end_branch": ({"branch": "work.ipynb"}, "not a branch", "Suspend it"),
    }
    # What the server refuses reaches the agent as well.
    busy = {"snapshot": "", "session": "work.ipynb"}

    async def work(agent):
        tools = await agent.tools()
        assert tools.keys() == calls.keys() | {"list_sessions"}
        assert all(one.description for one in tools.values())
        texts = {}
        for tool, (arguments, *_) in calls.items():
            with pytest.raises(ToolFailed) as failed:
                await agent.call(tool, **arguments)
            texts[tool] = str(failed.value)
        saved = await agent.call("save", session="work.ipynb")
        running = asyncio.ensure_future(
            agent.call("run_in", session="work.ipynb", code="import time; time.sleep(20)")
        )
        await asyncio.to_thread(page_is_busy, server, page)
        with pytest.raises(ToolFailed) as failed:
            await agent.call("restore", **busy | {"snapshot": saved["snapshot"]})
        texts["busy"] = str(failed.value)
        running.cancel()
        return texts

    texts = with_agent(work)
    for tool, (_, cause, hint) in calls.items():
        assert cause in texts[tool], tool
        assert hint in texts[tool], tool
    assert "A cell is running. Wait until it ends or interrupt it" in texts["busy"]
    assert "[kernel_state_conflict]" in texts["busy"]


def page_is_busy(server, page):
    wait_for(lambda: server.get(f"api/kernels/{page.kernel_id}")["execution_state"] == "busy")


@pytest.mark.slow
def test_code_runs_within_bounds_and_a_suspended_kernel_comes_back_for_it(server, page, with_agent):
    page.run("x = 1")

    async def work(agent):
        await agent.call("suspend", session="work.ipynb", title="asleep")
        (listed,) = (await agent.call("list_sessions"))["sessions"]
        assert listed["state"] == "suspended"
        found = await agent.call("run_in", session="work.ipynb", code="x += 1; x")
        assert (found["status"], found["output"]) == ("ok", "2\n")
        # Long output is cut, and can be read on.
        found = await agent.call(
            "run_in", session="work.ipynb", code="print('a' * 100_000 + 'end')"
        )
        assert agent.last_size < 6_000
        assert found["output"].endswith("end\n")
        assert found["characters"] == 100_004
        part = await agent.call("read_output", output_id=found["output_id"], offset=99_999)
        assert (part["output"], part["left"]) == ("aend\n", 0)
        # An endless loop is interrupted, and the kernel goes on.
        loop = {"session": "work.ipynb", "code": "while True: pass", "timeout_seconds": 2}
        found = await agent.call("run_in", **loop)
        assert found["status"] == "timed out"
        assert "KeyboardInterrupt" in found["error"]
        # So is code whose call is canceled.
        waits = "import time\nprint('begun', flush=True)\ntime.sleep(500)"
        running = asyncio.ensure_future(
            agent.call("run_in", session="work.ipynb", code=waits, timeout_seconds=900)
        )
        await asyncio.to_thread(page_is_busy, server, page)
        await agent.cancel(running)
        found = await agent.call("run_in", session="work.ipynb", code="print(x)")
        assert found["output"] == "2\n"

    with_agent(work)
    assert page.run("print(x)") == "2\n"


@pytest.mark.slow
def test_a_branch_whose_kernel_dies_is_told_as_such_and_ended(server, page, with_agent):
    page.run("x = 2")

    async def work(agent):
        tried = await agent.call(
            "try_each", state="work.ipynb", codes=["import os; os._exit(1)", "x"], then="end"
        )
        assert [one["status"] for one in tried["tries"]] == ["kernel died", "ok"]
        assert len((await agent.call("list_sessions"))["sessions"]) == 1

    with_agent(work)
    assert page.run("print(x)") == "2\n"


def test_an_agent_that_only_reads_has_no_other_tools(server, page, with_agent):
    async def work(agent):
        return await agent.tools()

    assert set(with_agent(work, "--read-only")) == {
        "list_sessions",
        "list_snapshots",
        "compare",
        "read_output",
    }


def test_kernels_are_not_reached_past_a_server_that_refuses_the_user(server, page, with_agent):
    async def work(agent):
        (listed,) = (await agent.call("list_sessions"))["sessions"]
        with pytest.raises(ToolFailed) as failed:
            await agent.call("save", session=page.kernel_id)
        return listed, str(failed.value)

    files = list(Path(server.env["JUPYTER_RUNTIME_DIR"]).glob("jpserver-*.json"))
    before = {path: path.read_text() for path in files}
    for path, text in before.items():
        path.write_text(json.dumps(json.loads(text) | {"token": "wrong"}))
    try:
        listed, text = with_agent(work)
    finally:
        for path, one in before.items():
            path.write_text(one)
    assert "does not accept this user's token" in listed["problem"]
    assert "does not accept this user's token" in text
    assert server.get("api/gpuckpt/snapshots")["snapshots"] == []
