"""A scripted agent finds the fix of a bug by tree search over MCP, while tries fail and the daemon is killed."""

import asyncio
import json
import os
import signal

import pytest

from jupyter_gpuckpt.client import Client
from jupyter_gpuckpt.wire import calls
from tests.tools.scripted_agent import agent

NOTEBOOK = {"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
#: The state in which the bug is: three steps that are wrong, and what counts how many are right.
SETUP = """
steps = {"load": None, "clean": None, "sum": None}
data = ["1", "2", "x", "4"]
def score():
    tests = (
        lambda: steps["load"](data)[:2] == ["1", "2"],
        lambda: steps["clean"](steps["load"](data)) == [1, 2, 4],
        lambda: steps["sum"](steps["clean"](steps["load"](data))) == 7,
    )
    done = 0
    for test in tests:
        try:
            done += bool(test())
        except Exception:
            break
    return done
print(score())
"""
#: Tries of each level: one leads on, the others are wrong or fail.
RIGHT = {
    "load": "steps['load'] = list; print(score())",
    "clean": "steps['clean'] = lambda all: [int(one) for one in all if one.isdigit()]; print(score())",
    "sum": "steps['sum'] = sum; print(score())",
}
WRONG = [
    "steps['{step}'] = lambda all: all[::-1]; print(score())",
    "raise ValueError('no idea')",
    "while True: pass",
    "import os; os._exit(1)",
    "import resource; resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30)); bytearray(8 << 30)",
]
STATUSES = ["ok", "error", "timed out", "kernel died", "error", "ok"]


@pytest.fixture
def server(make_server, daemon_env, monkeypatch):
    for name, value in daemon_env.items():
        monkeypatch.setenv(name, value)
    return make_server("--KernelRestarter.time_to_dead=0.3").start()


async def search(agent, kill_daemon, width):
    """Find the fix: go on from the best children of each level. Return the statuses of all tries and the best leaf."""
    statuses, front = (
        [],
        [(await agent.call("save", session="work.ipynb", title="bug"))["snapshot"]],
    )
    for level, step in enumerate(RIGHT):
        children = []
        for parent in front:
            codes = [one.format(step=step) for one in WRONG[: width - 1]] + [RIGHT[step]]
            search = agent.call(
                "try_each", state=parent, codes=codes, then="save", timeout_seconds=20
            )
            trying = asyncio.ensure_future(search)
            if level < 2:
                await asyncio.to_thread(kill_daemon)
            tries = (await trying)["tries"]
            statuses += [one["status"] for one in tries]
            children += [
                (int(one["output"].split()[-1]), one["snapshot"])
                for one in tries
                if "snapshot" in one
            ]
        best = max(score for score, _ in children)
        front = [snapshot for score, snapshot in children if score == best][:1]
    return statuses, front[0], best


@pytest.mark.timeout(1500)
@pytest.mark.slow  # eighteen branches, two killed daemons
def test_an_agent_finds_a_fix_three_levels_deep(server):
    (server.root / "work.ipynb").write_text(json.dumps(NOTEBOOK))
    page = server.open("work.ipynb")
    assert page.run(SETUP) == "0\n"
    killed = []

    def kill_daemon():
        """Kill the daemon while branches are made."""
        with Client.connect() as client:
            killed.append(client.send(calls.handshake()).pid)
        os.kill(killed[-1], signal.SIGKILL)

    async def work():
        async with agent(server.env) as connected:
            statuses, leaf, best = await search(connected, kill_daemon, len(STATUSES))
            restored = await connected.call("restore", snapshot=leaf)
            return statuses, best, restored, await connected.call("list_sessions")

    statuses, best, restored, left = asyncio.run(work())
    assert best == 3
    assert len(set(killed)) == 2
    # A try that the killed daemon has cost is tried again, or told as failed.
    expected = STATUSES * 3
    differ = [pair for pair in zip(statuses, expected, strict=True) if pair[0] != pair[1]]
    assert all(found == "failed" for found, _ in differ), statuses
    assert len(differ) <= len(STATUSES)
    assert [one["session"] for one in left["sessions"]] == [page.kernel_id]
    # The page goes on in the best state, and a person can take it back.
    assert page.run("print(score())") == "3\n"
    assert server.kernel(page.kernel_id)["before_tool"] == restored["saved_before"]
    server.do("roll_back", page.kernel_id, snapshot_id=restored["saved_before"])
    assert page.run("print(score())") == "0\n"
    assert server.kernel(page.kernel_id)["before_tool"] is None
    assert len(server.get("api/kernels")) == 1
