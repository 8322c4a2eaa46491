"""A scripted agent finds the fix of a bug by tree search over MCP, in variables and files, while tries fail and the daemon is killed."""

import asyncio
import json
import os
import signal
from pathlib import Path

import pytest

from jupyter_gpuckpt.client import Client
from jupyter_gpuckpt.host import processes
from jupyter_gpuckpt.wire import calls
from jupyter_gpuckpt.wire.folder_records import STAGING
from tests.conftest import wait_for
from tests.tools.scripted_agent import agent

NOTEBOOK = {"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
#: The state in which the bug is: a program in the folder with four wrong steps, what counts how many are right, and data in memory.
SETUP = """
import importlib.util, os, pathlib
data, weights = ["1", "2", "x", "4"], os.urandom(100 << 20)
pathlib.Path("pipeline.py").write_text(chr(10).join(f"{name} = None" for name in ("load", "clean", "total", "label")) + chr(10))
for number in range(200):
    pathlib.Path(f"asset-{number}").write_bytes(os.urandom(2000))
held = open("log", "a+")
def change(name, code):
    path = pathlib.Path("pipeline.py").absolute()
    lines = [f"{name} = {code}" if line.startswith(name + " ") else line for line in path.read_text().splitlines()]
    path.write_text(chr(10).join(lines) + chr(10))
    held.write(f"{name}: {code}" + chr(10)); held.flush()
def score():
    made = {}
    exec(pathlib.Path("pipeline.py").read_text(), made)
    tests = (
        lambda: made["load"](data)[:2] == ["1", "2"],
        lambda: made["clean"](made["load"](data)) == [1, 2, 4],
        lambda: made["total"](made["clean"](made["load"](data))) == 7,
        lambda: made["label"](7) == "7!",
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
#: What leads on at each level.
RIGHT = {
    "load": "list",
    "clean": "lambda all: [int(one) for one in all if one.isdigit()]",
    "total": "sum",
    "label": "lambda n: f'{n}!'",
}
#: What fails at each level, with how: an exception, an endless loop, the end of the kernel, no memory.
FAILING = [
    ("open('broken', 'w').write('x'); raise ValueError('no idea')", "error"),
    ("open('endless', 'w').write('x')\nwhile True: pass", "timed out"),
    ("import os; open('killed', 'w').write('x'); os._exit(1)", "kernel died"),
    (
        "import resource; resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30)); bytearray(8 << 30)",
        "error",
    ),
]
#: How many tries there are at each level: 20 after two of them, 64 in all.
WIDTHS = (10, 10, 22, 22)


@pytest.fixture
def server(make_server, daemon_env, monkeypatch):
    for name, value in daemon_env.items():
        monkeypatch.setenv(name, value)
    return make_server("--KernelRestarter.time_to_dead=0.3").start()


def tries_of(step, width):
    """Return the pieces of code of a level, with the status of each: two write the same file, and one of these leads on."""
    same = "open('result.txt', 'w').write({who!r}); change({step!r}, {code!r}); print(score())"
    found = list(FAILING)
    for number in range(width - len(FAILING) - 2):
        code = f"lambda all: ({number}, all)"
        found.append(
            (
                f"open('wrong-{number}', 'w').write('x'); change({step!r}, {code!r}); print(score())",
                "ok",
            )
        )
    found.append((same.format(who=f"wrong {step}", step=step, code="lambda all: None"), "ok"))
    found.append((same.format(who=f"right {step}", step=step, code=RIGHT[step]), "ok"))
    return found


async def search(agent, kill_daemon, measure):
    """Find the fix: go on from the best child of each level. Return the statuses with the expected ones, the best leaf and its score."""
    statuses = []
    front = (await agent.call("save", session="work.ipynb", title="bug"))["snapshot"]
    for level, (step, width) in enumerate(zip(RIGHT, WIDTHS, strict=True)):
        tries = tries_of(step, width)
        codes = [code for code, _ in tries]
        search = agent.call("try_each", state=front, codes=codes, then="save", timeout_seconds=15)
        trying = asyncio.ensure_future(search)
        if level in {0, 2}:
            await asyncio.to_thread(kill_daemon)
        answers = (await trying)["tries"]
        statuses += [
            (one["status"], wanted) for one, (_, wanted) in zip(answers, tries, strict=True)
        ]
        children = [
            (int(one["output"].split()[-1]), one["snapshot"])
            for one in answers
            if "snapshot" in one
        ]
        best, front = max(children)
        await asyncio.to_thread(measure)
    return statuses, front, best


def files_in(folder):
    """Return the files in a folder, without the notebook and what does not change."""
    return {
        path.name: path.read_text()
        for path in folder.iterdir()
        if path.is_file() and not path.name.startswith(("asset-", "work.ipynb"))
    }


def check_nothing_is_left(server, data):
    """Check that no process, and no file, of a branch or of a restore is left."""
    wait_for(lambda: not list(data.glob("folders/*/*")))
    assert not list(server.root.glob(f"{STAGING}*"))
    inits = [pid for pid in processes.every() if processes.name(pid) == "gpuckpt-init"]
    mark = str(data.parent)  # those of other tests may run
    assert sum(any(mark in word for word in processes.arguments(pid)) for pid in inits) == 1


@pytest.mark.timeout(1500)
@pytest.mark.slow  # 64 branches, two killed daemons
def test_an_agent_finds_a_fix_four_levels_deep_in_64_tries(server, daemon_env):
    (server.root / "work.ipynb").write_text(json.dumps(NOTEBOOK))
    page = server.open("work.ipynb")
    assert page.run(SETUP) == "0\n"
    before = files_in(server.root)
    killed, stored = [], []

    def kill_daemon():
        """Kill the daemon while branches are made."""
        with Client.connect() as client:
            killed.append(client.send(calls.handshake()).pid)
        os.kill(killed[-1], signal.SIGKILL)

    def measure():
        """Note the disk use of the store."""
        with Client.connect() as client:
            stored.append(client.send(calls.store()).stored_bytes)

    async def work():
        async with agent(server.env) as connected:
            statuses, leaf, best = await search(connected, kill_daemon, measure)
            compared = await connected.call("compare", first=leaf, second="work.ipynb")
            restored = await connected.call("restore", snapshot=leaf)
            return statuses, best, compared, restored, await connected.call("list_sessions")

    statuses, best, compared, restored, left = asyncio.run(work())
    assert len(statuses) == 64
    assert best == 4
    assert len(set(killed)) == 2
    # A try that the killed daemon has cost is tried again, or told as failed.
    differ = [pair for pair in statuses if pair[0] != pair[1]]
    assert all(found == "failed" for found, _ in differ), statuses
    assert len(differ) <= 12
    print(
        "statuses",
        sorted({found: [s for s, _ in statuses].count(found) for found, _ in statuses}.items()),
    )
    print("stored bytes after each level", stored)
    # The notebook and the folder are in the best state, and in no other.
    assert [one["session"] for one in left["sessions"]] == [page.kernel_id]
    assert page.run("print(score())") == "4\n"
    after = files_in(server.root)
    assert after.keys() == {"pipeline.py", "log", "result.txt"}
    assert after["result.txt"] == "right label"
    assert [line.partition(" ")[0] for line in after["pipeline.py"].splitlines()] == list(RIGHT)
    assert after["log"].splitlines() == [f"{name}: {code}" for name, code in RIGHT.items()]
    changed = {one["path"]: one["change"] for one in compared["files"]}
    assert changed == {"pipeline.py": "changed", "log": "changed", "result.txt": "removed"}
    assert "-load = list" in next(
        one["diff"] for one in compared["files"] if one["path"] == "pipeline.py"
    )
    check_nothing_is_left(server, Path(daemon_env["JUPYTER_GPUCKPT_DATA_DIR"]))
    assert stored[-1] < 2 * stored[1], stored
    # A person can take it back, with the files.
    assert server.kernel(page.kernel_id)["before_tool"] == restored["saved_before"]
    server.do("roll_back", page.kernel_id, snapshot_id=restored["saved_before"], files="restore")
    assert page.run("print(score())") == "0\n"
    assert files_in(server.root) == before
    assert server.kernel(page.kernel_id)["before_tool"] is None
    assert len(server.get("api/kernels")) == 1
