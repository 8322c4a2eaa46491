"""The demo of a machine that is taken back in the middle of a cell: it succeeds, and notices any difference."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

TOOLS = Path(__file__).parents[2] / "tools"


@pytest.fixture
def demo(monkeypatch):
    monkeypatch.syspath_prepend(str(TOOLS))
    return importlib.import_module("demo_reclaim")


def test_any_difference_is_noticed(demo):
    lines, cells = "step 1\nstep 2\nweights\n", {demo.CELL_ID}
    demo.compare(lines, demo.Said(lines, cells, True))
    for text in ("step 1\nweights\n", "step 1\nstep 3\nweights\n", f"{lines}more\n", ""):
        with pytest.raises(importlib.import_module("demo").DemoError):
            demo.compare(lines, demo.Said(text, cells, True))
    with pytest.raises(importlib.import_module("demo").DemoError, match="other cells"):
        demo.compare(lines, demo.Said(lines, cells | {""}, True))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_cell_ends_on_another_machine_with_a_notice_and_without(criu):
    done = subprocess.run(
        [sys.executable, TOOLS / "demo_reclaim.py", "--notice", "30"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("B: all lines are as undisturbed") == 2
