"""Compares root with an ordinary user: launch, save, suspend and resume of a small kernel, by turns."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from jupyter_gpuckpt.engine.tree import launch
from jupyter_gpuckpt.wire.manifest_records import LaunchSpec
from tests import uids
from tests.users.user import User

from . import engine_kernel
from .measured import Row, ratios
from .room import Skipped

ROUNDS = 20
LAUNCH_SECONDS = 0.06
#: Of root's time.
BUDGET = 1.1

STEPS = "from tests.benchmarks.ordinary_user import Steps\nsteps = Steps()"


class Steps:
    """A kernel of one user, in a process of that user's; every method returns how many seconds it took."""

    def __init__(self) -> None:
        self._open = ExitStack()
        self._folder = Path(self._open.enter_context(tempfile.TemporaryDirectory()))
        self._kernel = self._open.enter_context(
            engine_kernel.engine_kernel(self._folder, "import numpy; x = 1")
        )
        self._begun = self._folder / "begun"
        self._words = ["/bin/sh", "-c", f"echo >{self._begun}; exec sleep 60"]
        self._store = self._open.enter_context(engine_kernel.LocalStore(self._folder / "store"))

    def launch(self) -> float:
        """Return how much later a program that is launched begins than one that is started plainly."""
        return self._launched() - self._started()

    def _started(self) -> float:
        began = time.monotonic()
        with subprocess.Popen(self._words) as process:
            seconds = self._until_begun(began)
            process.kill()
        return seconds

    def _launched(self) -> float:
        spec = LaunchSpec("begins", self._words, dict(os.environ), "/", str(self._folder / "log"))
        began = time.monotonic()
        tree = launch.launch(spec, self._kernel.settings, self._folder / "exit-begins")
        seconds = self._until_begun(began)
        launch.kill(tree)
        return seconds

    def _until_begun(self, began: float) -> float:
        while not self._begun.exists():
            time.sleep(0.0002)
        self._begun.unlink()
        return time.monotonic() - began

    def save(self) -> float:
        """Save the kernel."""
        began = time.monotonic()
        self._kernel.save(self._store)
        return time.monotonic() - began

    def suspend(self) -> float:
        """Suspend it."""
        began = time.monotonic()
        self._suspended = self._kernel.save(self._store, stop=True)
        return time.monotonic() - began

    def resume(self) -> float:
        """Resume it, until it answers."""
        return self._kernel.resume(self._suspended, self._store)[0]

    def close(self) -> None:
        """End the kernel."""
        self._open.close()


def run() -> Iterator[Row]:
    """Medians of twenty rounds. In each, both do the same one right after the other, who begins by turns."""
    if os.geteuid():
        raise Skipped("being root and a user at once takes root")
    samples: dict[tuple[str, str], list[float]] = {}
    with User(0) as root, User(uids.first()) as user:
        shells = {"root": root, "an ordinary user": user}
        for shell in shells.values():
            shell.run(STEPS)
        for number in range(ROUNDS + 1):
            for verb in ("launch", "save", "suspend", "resume"):
                for name in sorted(shells, reverse=bool(number % 2)):
                    seconds = shells[name].run(f"result = steps.{verb}()")
                    if number:  # the first round fills caches
                        samples.setdefault((verb, name), []).append(seconds)
        for shell in shells.values():
            shell.run("steps.close()")
    for verb in ("launch", "save", "suspend", "resume"):
        by_name = {name: samples[verb, name] for name in shells}
        budget = LAUNCH_SECONDS if verb == "launch" else None
        for name, seconds in by_name.items():
            yield Row(f"{verb}, {name}", seconds, budget=budget)
        if verb != "launch":
            times = ratios(by_name["an ordinary user"], by_name["root"])
            yield Row(f"{verb}, times as long for an ordinary user", times, "x", budget=BUDGET)
