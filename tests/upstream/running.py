"""One suite in one variant, in a process of its own, with a daemon of its own."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from jupyter_gpuckpt.host import criu_program
from tests.conftest import processes_naming

from .sdists import unpacked
from .suites import WARNINGS_OF_TESTS, Suite, Variant

_TESTS = Path(__file__).parent.parent
#: A daemon without kernels leaves after this.
_IDLE_EXIT_SECONDS = 10
_DAEMON_SECONDS = 30.0
#: Upstream's 100 are for a machine that does nothing else.
_TEST_SECONDS = 300


@dataclass
class Outcome:
    """What a run told."""

    suite: Suite
    variant: Variant
    status: int = 0
    tests: Counter[str] = field(default_factory=Counter)
    changed: dict[str, int] = field(default_factory=dict)
    launches: Counter[str] = field(default_factory=Counter)
    #: Tests that failed in the last run, and those that failed at first.
    failures: list[str] = field(default_factory=list)
    again: list[str] = field(default_factory=list)
    #: Kernels that the daemon has a log of: counted by somebody else than the plugin.
    kernels: int = 0
    daemons_left: int = 0

    @property
    def good(self) -> bool:
        """Whether everything is as it should be."""
        wrong = self.tests["failed"] + self.tests["deselected"] + self.daemons_left
        wrong += self.launches["plain"] + self.launches["other"]
        # A kernel that is restarted has one log and several launches; one that could not be launched has a log as well.
        ours = self.tests["passed"] > 0 and self.launches["engine"] > 0 and self.kernels > 0
        loaded = not (self.suite.has_server and self.variant is Variant.EXTENSION) or bool(
            self.changed.get("servers with the extension")
        )
        return self.status == 0 and wrong == 0 and ours and loaded


def run(suite: Suite, variant: Variant, arguments: list[str]) -> Outcome:
    """Run it and look what is left; its output goes to ours. `arguments` go to pytest.

    What fails is run once more, as upstream's own workflows do it: many tests wait for a second and no longer.
    """
    folder = Path(tempfile.mkdtemp(prefix="gpuckpt-upstream-", dir="/tmp"))
    outcome = Outcome(suite, variant)
    try:
        # A copy of its own: kernels over ipc have their sockets in the working directory.
        shutil.copytree(unpacked(suite), folder / "suite")
        _run(outcome, folder, arguments)
        if outcome.tests["failed"]:
            outcome.again = outcome.failures
            print(f"== again: {', '.join(outcome.again)}", flush=True)
            _run(outcome, folder, [*arguments, "--last-failed"])
        outcome.kernels = len(list((folder / "data" / "log" / "kernels").glob("*.log")))
        outcome.daemons_left = _left(folder)
        return outcome
    finally:
        for pid in processes_naming(folder):
            os.kill(pid, signal.SIGKILL)
        shutil.rmtree(folder, ignore_errors=True)


def _run(outcome: Outcome, folder: Path, arguments: list[str]) -> None:
    report = folder / "report.json"
    report.unlink(missing_ok=True)
    outcome.status = subprocess.run(
        [sys.executable, "-m", "pytest", *_options(folder), *arguments, *outcome.suite.modules],
        cwd=folder / "suite",
        env=_environment(outcome.suite, outcome.variant, folder, report),
        stdin=subprocess.DEVNULL,
        check=False,
    ).returncode
    seen = json.loads(report.read_text()) if report.exists() else {"outcomes": {}, "failed": []}
    outcome.failures = seen["failed"]
    if outcome.again:
        # What is deselected now passed before.
        seen["outcomes"].pop("deselected", 0)
        outcome.tests["passed"] += seen["outcomes"].get("passed", 0)
        outcome.tests["failed"] = len(outcome.failures)
    else:
        outcome.tests, outcome.changed = Counter(seen["outcomes"]), seen.get("changed", {})
    lines = _lines(report.with_suffix(".launches"))
    outcome.launches = Counter(line["how"] for line in lines)


def _lines(path: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _options(folder: Path) -> list[str]:
    """Upstream's own settings hold, warnings are errors; but no doctests, and a test that hangs ends alone."""
    return [
        *("-p", f"{__package__.rpartition('.')[2]}.plugin", "-o", f"cache_dir={folder / 'cache'}"),
        *("-o", "addopts=", "-o", f"timeout={_TEST_SECONDS}", "-o", "timeout_method=signal"),
        *("-o", "log_cli_level=CRITICAL", "-ra", "-q", "--durations=5"),
        *(word for warning in WARNINGS_OF_TESTS for word in ("-W", warning)),
    ]


def _environment(suite: Suite, variant: Variant, folder: Path, report: Path) -> dict[str, str]:
    env = {
        **os.environ,
        # A folder of ours named `tests` would hide upstream's.
        "PYTHONPATH": str(_TESTS),
        "PYTHONWARNINGS": "",
        "GPUCKPT_UPSTREAM_SUITE": suite.distribution,
        "GPUCKPT_UPSTREAM_VARIANT": variant,
        "GPUCKPT_UPSTREAM_REPORT": str(report),
        "JUPYTER_GPUCKPT_RUNTIME_DIR": str(folder / "run"),
        "JUPYTER_GPUCKPT_DATA_DIR": str(folder / "data"),
        "JUPYTER_GPUCKPT_CRIU": str(criu_program.find() or ""),
        "JUPYTER_GPUCKPT_IDLE_EXIT": str(_IDLE_EXIT_SECONDS),
        "IPYTHONDIR": str(folder / "ipython"),
        "JUPYTER_RUNTIME_DIR": str(folder / "runtime"),
    }
    env.pop("JUPYTER_DEFAULT_PROVISIONER_NAME", None)
    # Some tests of batch runs start kernels by themselves.
    if variant is not Variant.EXTENSION:
        env["JUPYTER_DEFAULT_PROVISIONER_NAME"] = "gpuckpt-provisioner"
    return env


def _left(folder: Path) -> int:
    """How many processes of the daemon and its kernels do not leave by themselves."""
    deadline = time.monotonic() + _IDLE_EXIT_SECONDS + _DAEMON_SECONDS
    while (left := processes_naming(folder)) and time.monotonic() < deadline:
        time.sleep(0.2)
    for pid in left:
        print(f"left: {pid} {Path(f'/proc/{pid}/cmdline').read_bytes()!r}", flush=True)
    return len(left)
