"""The page docs/agents-run.md: a scripted agent's calls and answers over MCP, as they were: `python -m tests.tools.recorded_run`.

Ids, times and sizes are replaced, so that each run gives the same page.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from pathlib import Path

from jupyter_gpuckpt.host import criu_program
from tests.conftest import environment, folder_of_a_daemon
from tests.server.conftest import Server
from tests.tools.scripted_agent import ToolFailed, agent

PAGE = Path(__file__).parents[2] / "docs" / "agents-run.md"
HEAD = """# A recorded run

A scripted agent looks for the fix of a bug, in a notebook whose kernel has read data and imports a program of its folder. The calls and
answers are those of a real run over MCP, written by `tests/tools/recorded_run.py`; ids, times and sizes are replaced, and empty fields left
out. [AI agents](agents.md) has the tools.

The notebook's kernel has loaded data for an hour, say, and its folder has a program with a bug:

```python
{program}```
"""
PROGRAM = """def mean(values):
    return sum(values) / len(values)
"""
#: What the notebook's cell has done.
CELL = "values = [3, 4, None, 5]; import importlib, program, pathlib"
TRIES = [
    "pathlib.Path('program.py').write_text('def mean(values):\\n    return sum(values)\\n')\n"
    "importlib.reload(program); print(program.mean(values))",
    "pathlib.Path('program.py').write_text('def mean(values):\\n    known = [one for one in values if one is not None]\\n"
    "    return sum(known) / len(known)\\n')\nimportlib.reload(program); print(program.mean(values))",
    "values = 'oops'; import os; os.unlink('program.py'); print('gone')",
]
#: What differs between two runs, and what stands for it.
REPLACED = {
    r'"(seconds|paused_seconds|seconds_ago)": [0-9.]+': r'"\1": 0.1',
    r'"(memory_bytes|new_bytes|gpu_bytes|same)": [0-9]+': r'"\1": 1000',
    r'"output_id": "\w+"': '"output_id": "1"',
    r"-tool-\w{8}-\w{4}": "-tool-1",
    r"File (<ipython|~|/)[^\\]*": "File ",
}
ID = re.compile(
    r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b|\b[0-9a-f]{32}\b"
)


class Recording:
    """The calls of an agent and their answers, as text."""

    def __init__(self, connected):
        self._agent, self.parts = connected, []
        self._names: dict[str, str] = {}

    def say(self, text):
        """Add a sentence."""
        self.parts.append(text)

    async def call(self, tool, **arguments):
        """Call a tool, and add call and answer."""
        given = ", ".join(f"{name}={value!r}" for name, value in arguments.items())
        try:
            answer = await self._agent.call(tool, **arguments)
            text = json.dumps(answer, indent=1, ensure_ascii=False)
        except ToolFailed as error:
            answer, text = None, str(error)
        shown = self._plain(f"{tool}({given})\n\n{text}")
        self.parts.append(f"```text\n{shown}\n```")
        return answer

    def _plain(self, text):
        for pattern, stands_for in REPLACED.items():
            text = re.sub(pattern, stands_for, text)
        return ID.sub(lambda found: self._name(found[0]), text)

    def _name(self, found):
        kind = "session" if "-" in found else "snapshot"
        if found not in self._names:
            count = sum(name.startswith(kind) for name in self._names.values())
            self._names[found] = f"{kind}-{count + 1}"
        return self._names[found]


async def record(server):
    """Run the agent; return the parts of the page."""
    async with agent(server.env) as connected:
        run = Recording(connected)
        run.say("The agent saves the state, and sees the bug.")
        saved = await run.call("save", session="work.ipynb", title="before the fix")
        await run.call("run_in", session="work.ipynb", code="program.mean(values)")
        run.say(
            "It tries three ways, each in a branch with variables and files of its own. The third would have cost the data and the program."
        )
        tried = await run.call("try_each", state=saved["snapshot"], codes=TRIES, then="save")
        run.say("The second is right. What has it changed?")
        best = tried["tries"][1]["snapshot"]
        await run.call("compare", first=saved["snapshot"], second=best)
        run.say("The notebook's session goes on from there, with the file.")
        restored = await run.call("restore", snapshot=best)
        await run.call(
            "run_in",
            session="work.ipynb",
            code="print(program.mean(values)); print(pathlib.Path('program.py').read_text())",
        )
        run.say("A person, or the agent, can take it back: variables and files are as they were.")
        await run.call("restore", snapshot=restored["saved_before"])
        await run.call(
            "run_in",
            session="work.ipynb",
            code="print(pathlib.Path('program.py').read_text())",
        )
        run.say("An error tells what can be done.")
        await run.call("restore", snapshot="none")
        return run.parts


def page():
    """Run everything; return the text of the page."""
    criu = criu_program.find()
    assert criu is not None, "run tools/install-criu"
    with folder_of_a_daemon() as folder:
        server = Server(folder, environment(criu, folder)).start()
        try:
            (server.root / "program.py").write_text(PROGRAM)
            notebook = {"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
            (server.root / "work.ipynb").write_text(json.dumps(notebook))
            shown = server.open("work.ipynb")
            shown.run(CELL)
            parts = asyncio.run(record(server))
        finally:
            server.stop()
    return "\n\n".join([HEAD.format(program=PROGRAM).rstrip(), *parts]) + "\n"


if __name__ == "__main__":
    text = page()
    if "--check" in sys.argv:
        sys.exit(text != PAGE.read_text())
    PAGE.write_text(text)
