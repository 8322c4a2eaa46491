"""A JupyterLab server, a browser, and the little that the tests do with a notebook in it.

The server has folders of its own and a daemon of its own; it runs the bundle of this checkout, however the Python package
is installed. Everything is skipped where playwright, a chromium or a usable engine is missing, and fails where
GPUCKPT_REQUIRE names `browser` or `criu`.
"""

import importlib
import importlib.util
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tests.ports import free_port

ROOT = Path(__file__).parent.parent.parent
BUNDLE = ROOT / "jupyter_gpuckpt" / "labextension"

START_DEADLINE = 60
STOP_DEADLINE = 60

CHROMIUM_OPTIONS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
]

#: Whether the current notebook has a kernel that is ready for cells. The page's own indicator says idle before that.
HAS_IDLE_KERNEL = """() => {
  const context = window.jupyterapp.shell.currentWidget?.sessionContext;
  return context?.isReady && context.session?.kernel?.status === 'idle';
}"""

#: Whether the current notebook has a kernel at all.
HAS_KERNEL = "() => window.jupyterapp.shell.currentWidget?.sessionContext.session?.kernel"

#: A kernelspec that asks for the stock provisioner by name.
PLAIN_KERNEL = "plain-python"


def missing(what, reason):
    """Skip the test, or fail it where `what` is required."""
    required = what in os.environ.get("GPUCKPT_REQUIRE", "").split(",")
    (pytest.fail if required else pytest.skip)(reason)


class LabServer:
    """A running JupyterLab and its folders."""

    def __init__(self, folder, *, port, token, start, log):
        self.folder = folder
        self.root_dir = folder / "root"
        self.url = f"http://127.0.0.1:{port}"
        self.token = token
        self.start, self.process = start, start()
        self.log = log

    def get(self, path):
        """The JSON that `path` answers."""
        headers = {"Authorization": f"token {self.token}"}
        request = urllib.request.Request(f"{self.url}/{path}", headers=headers)
        with urllib.request.urlopen(request, timeout=10) as response:
            return json.load(response)

    def log_tail(self):
        return self.log.read_text(errors="replace")[-4000:]

    def wait_until_up(self):
        deadline = time.monotonic() + START_DEADLINE
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                self.get("api/status")
            except (urllib.error.URLError, OSError):
                time.sleep(0.2)
            else:
                return
        pytest.fail(f"JupyterLab did not start:\n{self.log_tail()}", pytrace=False)

    def stop(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(STOP_DEADLINE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def restart(self):
        """A new server on the same port, when the old one has ended or has been told to."""
        self.stop()
        self.process = self.start()
        self.wait_until_up()

    def write_notebook(self, name, *cells, kernel="python3"):
        """A notebook with these code cells."""
        notebook = {
            "cells": [
                {
                    "cell_type": "code",
                    "execution_count": None,
                    "id": f"cell{index}",
                    "metadata": {},
                    "outputs": [],
                    "source": source,
                }
                for index, source in enumerate(cells)
            ],
            "metadata": {"kernelspec": {"name": kernel, "display_name": kernel}},
            "nbformat": 4,
            "nbformat_minor": 5,
        }
        (self.root_dir / name).write_text(json.dumps(notebook))


class NotebookPage:
    """One notebook, open in the browser."""

    def __init__(self, page, expect, server, name):
        self.page = page
        self.expect = expect
        self.server = server
        self.name = name
        #: The state chip in the toolbar.
        self.chip = page.locator(".jp-NotebookPanel:not(.lm-mod-hidden) .jp-GpuCkptChip-content")
        #: The notice above the cells.
        self.banner = page.locator(".jp-NotebookPanel:not(.lm-mod-hidden) .jp-GpuCkptBanner")
        #: Notifications on the screen.
        self.toasts = page.locator(".Toastify__toast")

    def open(self, *, until=HAS_IDLE_KERNEL):
        """Load the page."""
        self.page.goto(f"{self.server.url}/lab/tree/{self.name}?token={self.server.token}&reset")
        self.page.wait_for_selector("#jupyterlab-splash", state="detached")
        self.page.wait_for_selector(".jp-NotebookPanel:not(.lm-mod-hidden) .jp-Notebook")
        self.page.wait_for_function(until)
        return self

    def reload(self):
        """Load the page again, whether or not the kernel is able to answer."""
        return self.open(until=HAS_KERNEL)

    def cell(self, index):
        return self.page.locator(".jp-NotebookPanel:not(.lm-mod-hidden) .jp-CodeCell").nth(index)

    def start_cell(self, index):
        """Run a cell."""
        self.cell(index).locator(".cm-content").click()
        self.page.keyboard.press("Shift+Enter")

    def run_cell(self, index, output):
        """Run a cell; returns when its output reads `output`."""
        self.start_cell(index)
        self.expect(self.cell(index).locator(".jp-OutputArea-output").last).to_have_text(output)

    def output(self, index):
        """All that a cell shows as its output."""
        return "".join(self.cell(index).locator(".jp-OutputArea-output").all_inner_texts())

    def button(self, kind):
        """A toolbar button: save, suspend or resume."""
        return self.page.locator(
            f'.jp-NotebookPanel:not(.lm-mod-hidden) [data-jp-item-name="gpuckpt-{kind}"] jp-button'
        )

    def press(self, kind):
        """Press a toolbar button as soon as it is enabled; a click on a disabled one would be silent."""
        self.expect(self.button(kind)).to_have_attribute("aria-disabled", "false")
        self.button(kind).click()

    def expect_enabled(self, *kinds):
        """Exactly these buttons are, or become, enabled."""
        for kind in ("save", "suspend", "resume"):
            disabled = "false" if kind in kinds else "true"
            self.expect(self.button(kind)).to_have_attribute("aria-disabled", disabled)

    def kernel_id(self):
        return self.page.evaluate(
            "() => window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.id"
        )

    def require_engine(self):
        """Skip, or fail where the engine is required, unless the kernel runs under it."""
        kernel = self.server.get(f"api/gpuckpt/kernels/{self.kernel_id()}")
        if not kernel["managed"]:
            missing("criu", f"kernels do not run under the engine here: {kernel['reason']}")
        return self


@pytest.fixture(scope="module")
def sync_api():
    """Playwright's synchronous interface."""
    if importlib.util.find_spec("playwright") is None:
        missing("browser", "playwright is not installed")
    return importlib.import_module("playwright.sync_api")


@pytest.fixture
def expect(sync_api):
    """Playwright's assertions, which wait."""
    sync_api.expect.set_options(timeout=30_000)
    return sync_api.expect


@pytest.fixture(scope="module")
def chromium(sync_api):
    """Debian's chromium, or the one that CHROMIUM names."""
    names = ("chromium", "chromium-browser", "google-chrome")
    path = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, names)), None)
    if path is None:
        missing("browser", "no chromium is installed")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=CHROMIUM_OPTIONS)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def lab_server(tmp_path_factory):
    """JupyterLab with folders, kernels and a daemon of its own."""
    if importlib.util.find_spec("jupyterlab") is None:
        missing("browser", "jupyterlab is not installed")
    folder = tmp_path_factory.mktemp("lab")
    # A socket's path is short, so this one does not lie below the tests' folder.
    runtime_dir = Path(tempfile.mkdtemp(prefix="gpuckpt-"))
    write_folders(folder)
    port = free_port()
    token = secrets.token_hex(16)
    log = folder / "server.log"
    arguments = [
        "--no-browser",
        "--ip=127.0.0.1",
        f"--port={port}",
        "--ServerApp.port_retries=0",
        f"--ServerApp.root_dir={folder / 'root'}",
        "--LabApp.expose_app_in_browser=True",
    ]
    if os.geteuid() == 0:
        arguments.append("--ServerApp.allow_root=True")

    def start():
        with log.open("ab") as output:
            return subprocess.Popen(
                [sys.executable, "-m", "jupyterlab", *arguments],
                env={**environment(folder, runtime_dir), "JUPYTER_TOKEN": token},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    server = LabServer(folder, port=port, token=token, start=start, log=log)
    try:
        server.wait_until_up()
        yield server
    finally:
        server.stop()
        end_processes_of(runtime_dir)
        shutil.rmtree(runtime_dir, ignore_errors=True)


@pytest.fixture
def open_notebook(chromium, expect, lab_server, request, tmp_path):
    """Opens a notebook made of cells: `open_notebook("a.ipynb", "x = 1", "x")`. An error in the page fails the test."""
    context = chromium.new_context(viewport={"width": 1280, "height": 800})
    page = context.new_page()
    page.set_default_timeout(30_000)
    errors = []
    page.on("pageerror", lambda error: errors.append(str(error)))

    def open_notebook(name, *cells, kernel="python3"):
        lab_server.write_notebook(name, *cells, kernel=kernel)
        return NotebookPage(page, expect, lab_server, name).open()

    yield open_notebook
    folder = Path(os.environ.get("GPUCKPT_SCREENSHOTS", tmp_path))
    page.screenshot(path=folder / f"{request.node.name}.png")
    context.close()
    assert not errors


def environment(folder, runtime_dir):
    """The tests' own, with every folder of Jupyter's replaced."""
    folders = {
        "JUPYTER_CONFIG_DIR": "config",
        "JUPYTER_DATA_DIR": "data",
        "JUPYTER_RUNTIME_DIR": "runtime",
        "JUPYTERLAB_SETTINGS_DIR": "settings",
        "JUPYTERLAB_WORKSPACES_DIR": "workspaces",
        "IPYTHONDIR": "ipython",
    }
    return {
        **os.environ,
        **{name: str(folder / below) for name, below in folders.items()},
        # In a virtual environment the installed bundle would come before this checkout's.
        "JUPYTER_PREFER_ENV_PATH": "0",
        "JUPYTER_GPUCKPT_RUNTIME_DIR": str(runtime_dir),
        "JUPYTER_GPUCKPT_DATA_DIR": str(folder / "gpuckpt"),
    }


def end_processes_of(runtime_dir):
    """Kill what the server has left: the daemon and its kernels, which have `runtime_dir` in their environment."""
    marker = f"JUPYTER_GPUCKPT_RUNTIME_DIR={runtime_dir}".encode()
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if marker in path.read_bytes().split(b"\0"):
                os.kill(int(path.parent.name), signal.SIGKILL)
        except OSError:
            continue


def write_folders(folder):
    """The server's root, this checkout's bundle, quiet settings, and a kernel that is not under the engine."""
    (folder / "root").mkdir()
    extensions = folder / "data" / "labextensions"
    extensions.mkdir(parents=True)
    (extensions / "jupyter-gpuckpt").symlink_to(BUNDLE)
    # News would cover the page.
    settings = folder / "settings" / "@jupyterlab" / "apputils-extension"
    settings.mkdir(parents=True)
    (settings / "notification.jupyterlab-settings").write_text(
        json.dumps({"fetchNews": "false", "checkForUpdates": False})
    )
    kernel = folder / "data" / "kernels" / PLAIN_KERNEL
    kernel.mkdir(parents=True)
    spec = {
        "argv": [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"],
        "display_name": "Plain Python",
        "language": "python",
        "metadata": {"kernel_provisioner": {"provisioner_name": "local-provisioner"}},
    }
    (kernel / "kernel.json").write_text(json.dumps(spec))
