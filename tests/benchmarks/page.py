"""How soon all indicators of a notebook agree, and how late JupyterLab's page is beside one without this extension."""

from __future__ import annotations

import importlib
import json
import shutil
import signal
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from .measured import Row, ratios
from .room import Skipped

ROUNDS = 5
BUDGET_AGREE_SECONDS = 1.0
BUDGET_RATIO = 2.0
WAIT_SECONDS = 60.0

#: Notes every change of what the chip, the circle in the toolbar and the status bar show, with the time of the machine's clock.
WATCH = """() => {
  const text = selector => document.querySelector(selector)?.textContent ?? '';
  window.noted = [];
  const note = () => {
    const shown = {
      chip: text('.jp-GpuCkptChip-content'),
      circle: document.querySelector('.jp-Notebook-ExecutionIndicator')?.dataset.status ?? '',
      bar: text('.jp-StatusBar-Left').match(/\\| ([A-Z][a-z]+)/)?.[1] ?? ''
    };
    const last = window.noted.at(-1);
    if (!last || ['chip', 'circle', 'bar'].some(name => last[name] !== shown[name])) {
      window.noted.push({ ...shown, at: (performance.timeOrigin + performance.now()) / 1000 });
    }
  };
  note();
  setInterval(note, 5);
}"""
#: What they show after a suspend, a resume and the server's death.
SUSPENDED = {"chip": "Suspended", "circle": "disconnected", "bar": "Disconnected"}
RUNNING = {"chip": "Running", "circle": "idle", "bar": "Idle"}
DEAD = {"chip": "Connecting", "circle": "connecting", "bar": "Connecting"}

#: Notes how late timers are.
PROBE = """() => {
  window.late = [];
  let due = performance.now() + 5;
  const look = () => {
    window.late.push(Math.max(0, performance.now() - due) / 1000);
    due = performance.now() + 5;
    setTimeout(look, 5);
  };
  setTimeout(look, 5);
}"""
WITHOUT, WITH = "without the extension", "with it"
WRITTEN, SAVED = "without it, its kernel's memory written as often", "with it, saved on and on"
TALK = "import time\nfor number in range(1000):\n    print('x' * 80)\n    time.sleep(0.005)"
#: Writes to files as often, and each time as much, as the kernel of the other page was saved: the number of files and their bytes.
WRITE = """import os, threading
writes, size = map(int, open("written").read().split())
def write():
    for _ in range(writes):
        with open("copy", "wb", buffering=0) as file:
            for _ in range(size >> 20):
                file.write(os.urandom(64) * (1 << 14))
            os.fsync(file.fileno())
threading.Thread(target=write).start()
"""


def run() -> Iterator[Row]:
    """One notebook in a real browser, with the extension and with it disabled."""
    try:
        browser = importlib.import_module("tests.browser.conftest")
        playwright = importlib.import_module("playwright.sync_api")
    except ImportError as missing:
        raise Skipped(f"{missing.name} is not installed") from missing
    chromium_path = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium_path is None:
        raise Skipped("no chromium is installed")
    with playwright.sync_playwright() as api:
        chromium = api.chromium.launch(executable_path=chromium_path, args=browser.CHROMIUM_OPTIONS)
        with _notebook(chromium, playwright) as notebook:
            with _notebook(chromium, playwright, disabled=True) as stock:
                late = _lateness(stock, notebook)
            yield from _agreement(notebook)
        chromium.close()
    p99 = {name: [_p99(samples) for samples in rounds] for name, rounds in late.items()}
    for name, rounds in late.items():
        yield Row(f"page late while a cell prints, {name}: p99", p99[name])
        # A save takes processors from the browser, like any other work of the kernel that writes as much.
        if stock_name := {WITH: WITHOUT, SAVED: WRITTEN}.get(name):
            yield Row("  ratio", ratios(p99[name], p99[stock_name]), "x", BUDGET_RATIO)
        yield Row("  longest block", [max(samples) for samples in rounds])


def _agreement(notebook: Any) -> Iterator[Row]:
    notebook.page.evaluate(WATCH)
    times: dict[str, list[float]] = defaultdict(list)
    for _ in range(ROUNDS):
        for verb, shown in (("suspend", SUSPENDED), ("resume", RUNNING)):
            command = f"gpuckpt:{verb}-kernel"
            times[verb].append(_time_to_agree(notebook, shown, _execution(notebook, command)))
    for verb, samples in times.items():
        yield Row(
            f"from a {verb} until chip, status bar and circle show it",
            samples,
            budget=BUDGET_AGREE_SECONDS,
        )
    began = time.time()
    notebook.server.process.send_signal(signal.SIGKILL)
    ended = max(_times_of(notebook, DEAD))
    yield Row(
        "from the server's death until they show it",
        [ended - began],
        budget=BUDGET_AGREE_SECONDS,
    )


def _execution(notebook: Any, command: str) -> Callable[[], None]:
    return lambda: notebook.page.evaluate(
        "id => void window.jupyterapp.commands.execute(id)", command
    )


def _time_to_agree(notebook: Any, shown: dict[str, str], work: Callable[[], None]) -> float:
    """Return the time from the kernel's change, by the daemon's record, until the last indicator shows it."""
    notebook.page.evaluate("() => void noted.splice(0, noted.length - 1)")
    work()
    last = max(_times_of(notebook, shown))
    kernel = notebook.server.get(f"api/gpuckpt/kernels/{notebook.kernel_id()}")
    return last - float(kernel["since"])


def _times_of(notebook: Any, shown: dict[str, str]) -> list[float]:
    """Wait until all indicators show this; return the time at which each of them did so first."""
    wanted = json.dumps(shown)
    notebook.page.wait_for_function(
        f"() => Object.entries({wanted}).every(([name, text]) => noted.at(-1)[name] === text)"
    )
    noted = notebook.page.evaluate("() => noted")
    return [
        next(one["at"] for one in noted[1:] if one[name] == text) for name, text in shown.items()
    ]


def _lateness(stock: Any, notebook: Any) -> dict[str, list[list[float]]]:
    """Return how late the timers of both pages are in each round. The pages take turns, because the machine has other work, too."""
    late: dict[str, list[list[float]]] = defaultdict(list)
    for page in (stock.page, notebook.page):
        page.evaluate(PROBE)
    for _ in range(ROUNDS):
        late[WITHOUT].append(_late_in_a_cell(stock))
        late[WITH].append(_late_in_a_cell(notebook))
        before = {one["snapshot_id"] for one in _snapshots(notebook)}
        late[SAVED].append(_late_in_a_cell(notebook, saves=True))
        sizes = [
            one["raw_bytes"] for one in _snapshots(notebook) if one["snapshot_id"] not in before
        ]
        written = f"{len(sizes)} {sum(sizes) // len(sizes)}"
        (stock.server.root_dir / "written").write_text(written)
        late[WRITTEN].append(_late_in_a_cell(stock, cell=1))
    return {name: late[name] for name in (WITHOUT, WITH, WRITTEN, SAVED)}


def _snapshots(notebook: Any) -> list[dict[str, Any]]:
    """Return the snapshots of the server."""
    found: list[dict[str, Any]] = notebook.server.get("api/gpuckpt/snapshots")["snapshots"]
    return found


def _late_in_a_cell(notebook: Any, *, cell: int = 0, saves: bool = False) -> list[float]:
    """Return how late the page's timers are while a cell prints and, with `saves`, while its kernel is saved again and again."""
    notebook.page.bring_to_front()
    notebook.page.evaluate("() => void late.splice(0)")
    notebook.start_cell(cell)
    prompt = notebook.cell(cell).locator(".jp-InputPrompt")
    while saves and prompt.inner_text() == "[*]:":
        notebook.page.evaluate("() => window.jupyterapp.commands.execute('gpuckpt:save-kernel')")
    notebook.expect(prompt).not_to_have_text("[*]:")
    late: list[float] = notebook.page.evaluate("() => late")
    return late


@contextmanager
def _notebook(chromium: Any, playwright: Any, *, disabled: bool = False) -> Iterator[Any]:
    """Open a notebook of a server of its own."""
    lab_server = importlib.import_module("tests.browser.lab_server")
    notebook_page = importlib.import_module("tests.browser.notebook_page")
    folder = Path(tempfile.mkdtemp(prefix="gpuckpt-bench-"))
    if disabled:
        config = folder / "config" / "labconfig"
        config.mkdir(parents=True)
        (config / "page_config.json").write_text(
            json.dumps({"disabledExtensions": {"jupyter-gpuckpt": True}})
        )
    playwright.expect.set_options(timeout=WAIT_SECONDS * 1000)
    try:
        with lab_server.running_lab(folder) as [server]:
            server.write_notebook("page.ipynb", TALK, WRITE + TALK)
            context = chromium.new_context(viewport={"width": 1280, "height": 800})
            context.set_default_timeout(WAIT_SECONDS * 1000)
            page = context.new_page()
            yield notebook_page.NotebookPage(page, playwright.expect, server, "page.ipynb").open()
            with suppress(playwright.Error):
                context.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _p99(samples: list[float]) -> float:
    return statistics.quantiles(samples, n=100)[98]
