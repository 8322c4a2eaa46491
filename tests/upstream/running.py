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

from jupyter_gpuckpt.host import doctor, processes

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
    status: int
    tests: Counter[str] = field(default_factory=Counter)
    changed: dict[str, int] = field(default_factory=dict)
    launches: Counter[str] = field(default_factory=Counter)
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
    """Run it and look what is left; its output goes to ours. `arguments` go to pytest."""
    directory = unpacked(suite)
    folder = Path(tempfile.mkdtemp(prefix="gpuckpt-upstream-", dir="/tmp"))
    report = folder / "report.json"
    try:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *_options(), *arguments, *suite.modules],
            cwd=directory,
            env=_environment(suite, variant, folder, report),
            stdin=subprocess.DEVNULL,
            check=False,
        )
        outcome = Outcome(suite, variant, done.returncode)
        outcome.kernels = len(list((folder / "data" / "log" / "kernels").glob("*.log")))
        outcome.daemons_left = _left(folder)
        if report.exists():
            seen = json.loads(report.read_text())
            outcome.tests, outcome.changed = Counter(seen["outcomes"]), seen["changed"]
        launches = report.with_suffix(".launches")
        if launches.exists():
            lines = map(json.loads, launches.read_text().splitlines())
            outcome.launches = Counter(line["how"] for line in lines)
        return outcome
    finally:
        for pid in _processes_of(folder):
            os.kill(pid, signal.SIGKILL)
        shutil.rmtree(folder, ignore_errors=True)


def _options() -> list[str]:
    """Upstream's own settings hold, warnings are errors; but no doctests, and a test that hangs ends alone."""
    return [
        *("-p", f"{__package__.rpartition('.')[2]}.plugin", "-p", "no:cacheprovider"),
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
        "JUPYTER_GPUCKPT_CRIU": str(doctor.find_criu() or ""),
        "JUPYTER_GPUCKPT_IDLE_EXIT": str(_IDLE_EXIT_SECONDS),
        "IPYTHONDIR": str(folder / "ipython"),
        "JUPYTER_RUNTIME_DIR": str(folder / "runtime"),
    }
    env.pop("JUPYTER_DEFAULT_PROVISIONER_NAME", None)
    if variant is Variant.PROVISIONER:
        env["JUPYTER_DEFAULT_PROVISIONER_NAME"] = "gpuckpt-provisioner"
    return env


def _left(folder: Path) -> int:
    """How many processes of the daemon and its kernels do not leave by themselves."""
    deadline = time.monotonic() + _IDLE_EXIT_SECONDS + _DAEMON_SECONDS
    while (left := _processes_of(folder)) and time.monotonic() < deadline:
        time.sleep(0.2)
    for pid in left:
        print(f"left: {pid} {Path(f'/proc/{pid}/cmdline').read_bytes()}", flush=True)
    return len(left)


def _processes_of(folder: Path) -> list[int]:
    marker, found = str(folder).encode(), []
    for entry in Path("/proc").glob("[0-9]*"):
        pid = int(entry.name)
        try:
            text = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
        except OSError:
            continue
        if marker in text and pid != os.getpid() and processes.state(pid) not in (None, "Z"):
            found.append(pid)
    return found
