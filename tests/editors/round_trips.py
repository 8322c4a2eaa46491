"""Round trips and throughput of a kernel through the relay, and of a stock kernel, alternated: `python -m tests.editors.round_trips`.

It prints one JSON document: medians of each, and the ratios of the medians.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from jupyter_client.manager import KernelManager

from jupyter_gpuckpt.host import criu_program
from tests.conftest import end_everything_below, environment

ROUNDS, CELLS, DISPLAYS = 5, 100, 2000
DISPLAY = f"from IPython.display import display\nfor n in range({DISPLAYS}): display(n)"
DEBUG_INFO = {"type": "request", "seq": 1, "command": "debugInfo"}


class Measured:
    def __init__(self, name):
        began = time.monotonic()
        self.manager = KernelManager(kernel_name=name)
        self.manager.start_kernel()
        self.client = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=90)
        self._run("1")
        self.first_reply = time.monotonic() - began
        self.cells, self.controls, self.rates = [], [], []

    def _run(self, code, silent=False):
        self.client.execute_interactive(code, silent=silent, output_hook=lambda _: None, timeout=90)

    def round(self):
        for _ in range(CELLS):
            began = time.monotonic()
            self._run("pass", silent=True)
            self.cells.append(time.monotonic() - began)
        for _ in range(CELLS):
            began = time.monotonic()
            self.client.control_channel.send(self.client.session.msg("debug_request", DEBUG_INFO))
            self.client.control_channel.get_msg(timeout=30)
            self.controls.append(time.monotonic() - began)
        began = time.monotonic()
        self._run(DISPLAY)
        self.rates.append(DISPLAYS / (time.monotonic() - began))

    def end(self):
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)

    def result(self):
        return {
            "first_reply_s": round(self.first_reply, 2),
            "silent_cell_ms": round(statistics.median(self.cells) * 1000, 2),
            "control_ms": round(statistics.median(self.controls) * 1000, 2),
            "displays_per_s": round(statistics.median(self.rates)),
        }


def measure(relayed):
    Measured(
        relayed
    ).end()  # the relay and the daemon run from here on, and what the kernel says about itself is known
    stock_first, relayed_first = [], []
    for _ in range(3):
        for name, firsts in (("python3", stock_first), (relayed, relayed_first)):
            one = Measured(name)
            firsts.append(one.first_reply)
            one.end()
    both = Measured("python3"), Measured(relayed)
    for _ in range(ROUNDS):
        for one in both:
            one.round()
    stock, through = (one.result() for one in both)
    for one in both:
        one.end()
    stock["first_reply_s"] = round(statistics.median(stock_first), 2)
    through["first_reply_s"] = round(statistics.median(relayed_first), 2)
    ratios = {name: round(through[name] / stock[name], 2) for name in stock}
    return {"stock": stock, "relay": through, "ratios": ratios, "load": os.getloadavg()[0]}


def main():
    if len(sys.argv) > 1:
        print(json.dumps(measure(sys.argv[1]), indent=1))
        return
    criu = criu_program.find() or Path("~/.cache/jupyter-gpuckpt/criu/sbin/criu").expanduser()
    with tempfile.TemporaryDirectory(prefix="gpuckpt-", dir="/tmp") as folder:
        env = environment(criu, Path(folder))
        command = [sys.executable, "-m", "jupyter_gpuckpt.cli", "install-kernel", "--json"]
        done = subprocess.run(command, env=env, check=True, capture_output=True)
        name = Path(json.loads(done.stdout)["folder"]).name
        command = [sys.executable, "-m", "tests.editors.round_trips", name]
        try:
            subprocess.run(command, env=env, check=True)
        finally:
            end_everything_below(Path(folder))


if __name__ == "__main__":
    main()
