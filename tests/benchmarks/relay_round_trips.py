"""Round trips, throughput and first replies of kernels through the relay, beside stock kernels."""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from jupyter_client.manager import KernelManager

from jupyter_gpuckpt.client import relayed_kernelspecs
from jupyter_gpuckpt.host import criu_program
from tests.conftest import end_everything_below, environment

from .measured import Row, ratios
from .room import Skipped

STARTS, ROUNDS, CELLS, DISPLAYS = 5, 7, 100, 2000
BUDGET_RATIO, BUDGET_THROUGHPUT, BUDGET_LATER_SECONDS = 1.5, 0.85, 0.4
DISPLAY = f"from IPython.display import display\nfor n in range({DISPLAYS}): display(n)"
DEBUG_INFO = {"type": "request", "seq": 1, "command": "debugInfo"}


class Measured:
    """A kernel of a name, and its client."""

    def __init__(self, name: str) -> None:
        began = time.monotonic()
        self.manager = KernelManager(kernel_name=name)
        self.manager.start_kernel()
        self.client = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=90)
        self.run("1")
        self.first_reply = time.monotonic() - began

    def run(self, code: str, *, silent: bool = False) -> None:
        """Run a cell to its end."""
        self.client.execute_interactive(
            code, silent=silent, output_hook=lambda _message: None, timeout=90
        )

    def cell(self) -> float:
        """Return the median seconds of a silent cell."""
        return self._median(lambda: self.run("pass", silent=True))

    def control(self) -> float:
        """Return the median seconds of a request on the control channel."""

        def ask() -> None:
            self.client.control_channel.send(self.client.session.msg("debug_request", DEBUG_INFO))
            self.client.control_channel.get_msg(timeout=30)

        return self._median(ask)

    def displays(self) -> float:
        """Return the small messages of a cell per second."""
        began = time.monotonic()
        self.run(DISPLAY)
        return DISPLAYS / (time.monotonic() - began)

    def end(self) -> None:
        """End the kernel."""
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)

    def _median(self, request: Callable[[], None]) -> float:
        seconds = []
        for _ in range(CELLS):
            began = time.monotonic()
            request()
            seconds.append(time.monotonic() - began)
        return statistics.median(seconds)


def run() -> Iterator[Row]:
    """Yield rows of a kernel of each kind: they run at the same time, and each round measures one and then the other."""
    if (criu := criu_program.find()) is None:
        raise Skipped("there is no CRIU")
    before = dict(os.environ)
    with tempfile.TemporaryDirectory(prefix="gpuckpt-bench-", dir="/tmp") as folder:
        os.environ.update(environment(criu, Path(folder)))
        try:
            yield from _rows(relayed_kernelspecs.install("python3")[0].name)
        finally:
            os.environ.clear()
            os.environ.update(before)
            end_everything_below(Path(folder))


def _rows(relayed: str) -> Iterator[Row]:
    # The relay and the daemon run from here on, and what the kernel says about itself is known.
    Measured(relayed).end()
    first: dict[str, list[float]] = {"python3": [], relayed: []}
    for _ in range(STARTS):
        for name, seconds in first.items():
            one = Measured(name)
            seconds.append(one.first_reply)
            one.end()
    stock, through = Measured("python3"), Measured(relayed)
    cells, controls, displays = (
        [(measure(stock), measure(through)) for _ in range(ROUNDS)]
        for measure in (Measured.cell, Measured.control, Measured.displays)
    )
    stock.end()
    through.end()
    yield Row("first reply of a stock kernel", first["python3"])
    yield Row("  of a kernel through the relay", first[relayed])
    later = [one - other for one, other in zip(first[relayed], first["python3"], strict=True)]
    yield Row("  how much later", later, budget=BUDGET_LATER_SECONDS)
    for name, pairs in (("silent cell", cells), ("control request", controls)):
        of_stock, relays = ([1000 * pair[n] for pair in pairs] for n in (0, 1))
        yield Row(f"{name} of a stock kernel", of_stock, "ms")
        yield Row("  through the relay", relays, "ms")
        budget = BUDGET_RATIO if name == "silent cell" else None
        yield Row("  ratio", ratios(relays, of_stock), "x", budget)
    of_stock, relays = ([pair[n] for pair in displays] for n in (0, 1))
    yield Row("small messages of a stock kernel", of_stock, "1/s")
    yield Row("  through the relay", relays, "1/s")
    yield Row("  ratio", ratios(relays, of_stock), "x", BUDGET_THROUGHPUT, at_least=True)
