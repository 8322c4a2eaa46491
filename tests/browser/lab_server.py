"""A JupyterLab server with folders and a daemon of its own, which also serves Notebook 7.

It runs the bundle of this checkout, however the Python package is installed.
"""

import itertools
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
from contextlib import ExitStack, contextmanager
from http import HTTPStatus
from pathlib import Path

import pytest

from tests.ports import free_port
from tests.programs import python_module

ROOT = Path(__file__).parent.parent.parent
BUNDLE = ROOT / "jupyter_gpuckpt" / "labextension"

START_DEADLINE = 120
STOP_DEADLINE = 120

NUMBERS = itertools.count(1)

#: A kernelspec that asks for the stock provisioner by name.
PLAIN_KERNEL = "plain-python"


@contextmanager
def running_lab(*folders):
    """Servers that are up, one for each folder; nothing of them is left afterwards."""
    with ExitStack() as undo:
        servers = [undo.enter_context(started_lab(folder)) for folder in folders]
        for server in servers:
            server.wait_until_up()
        yield servers


@contextmanager
def started_lab(folder, within=()):
    """Yield a server that may still be starting. `within`: a command that runs the command after it, e.g. in namespaces."""
    # A socket's path is short, so this one does not lie below the tests' folder.
    runtime_dir = Path(tempfile.mkdtemp(prefix="gpuckpt-"))
    server = LabServer(folder, runtime_dir, within)
    try:
        yield server
    finally:
        server.stop()
        end_processes_of(runtime_dir)
        shutil.rmtree(runtime_dir, ignore_errors=True)


class LabServer:
    """A running JupyterLab and its folders."""

    def __init__(self, folder, runtime_dir, within=()):
        self.folder, self.runtime_dir, self._within = folder, runtime_dir, within
        self.root_dir = folder / "root"
        self.port, self.token = free_port(), secrets.token_hex(16)
        # Cookies are the host's, whatever its port: each server has an address of its own.
        self.ip = f"127.0.0.{next(NUMBERS)}"
        self.url = f"http://{self.ip}:{self.port}"
        self.log = folder / "server.log"
        write_folders(folder)
        self.process = self.start()

    def start(self):
        """Start a new process on the same port and with the same folders."""
        arguments = [
            "--no-browser",
            f"--ip={self.ip}",
            f"--port={self.port}",
            "--ServerApp.port_retries=0",
            f"--ServerApp.root_dir={self.root_dir}",
            "--LabApp.expose_app_in_browser=True",
            "--JupyterNotebookApp.expose_app_in_browser=True",
        ]
        if os.geteuid() == 0:
            arguments.append("--ServerApp.allow_root=True")
        with self.log.open("ab") as output:
            return subprocess.Popen(
                [*self._within, *python_module("jupyterlab"), *arguments],
                env={**environment(self.folder, self.runtime_dir), "JUPYTER_TOKEN": self.token},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def get(self, path):
        """Return the JSON that `path` answers."""
        with self._request(path) as response:
            return json.load(response)

    def _request(self, path, method="GET"):
        headers = {"Authorization": f"token {self.token}"}
        request = urllib.request.Request(f"{self.url}/{path}", headers=headers, method=method)
        return urllib.request.urlopen(request, timeout=120)

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

    def end_without_goodbye(self):
        """Kill the server, its daemon and its kernels, as a machine that is switched off."""
        end_processes_of(self.runtime_dir)
        self.process.wait(STOP_DEADLINE)

    def restart(self):
        """Start a new server on the same port after the old one has ended."""
        self.stop()
        self.process = self.start()
        self.wait_until_up()

    def end_sessions(self, name=None):
        """Shut down the kernels of a notebook, or of all notebooks and consoles."""
        for session in self.get("api/sessions"):
            if name in (None, session["path"]):
                self._delete(f"api/sessions/{session['id']}")

    def delete_snapshots(self):
        """Delete all snapshots that no suspended kernel needs."""
        for snapshot in self.get("api/gpuckpt/snapshots")["snapshots"]:
            self._delete(f"api/gpuckpt/snapshots/{snapshot['snapshot_id']}")

    def _delete(self, path):
        try:
            self._request(path, "DELETE").close()
        except urllib.error.HTTPError as error:
            # The session of a console has ended with its notebook's kernel, or a suspended kernel needs the snapshot.
            if error.code not in (HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT):
                raise

    def write_notebook(self, name, *cells, kernel="python3"):
        """Write a notebook with these code cells, which has no kernel."""
        # A test that failed and is run once more has left one.
        self.end_sessions(name)
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


def environment(folder, runtime_dir):
    """Return this process's environment with every folder of Jupyter's replaced."""
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
    """Write the server's root, this checkout's bundle, quiet settings, and a kernelspec outside of the engine."""
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
