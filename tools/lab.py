"""Starts JupyterLab on a demo notebook: `make lab`."""

import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / ".lab"
NOTEBOOK = "demo.ipynb"


def free_port() -> int:
    """A port of the loopback interface that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def main() -> int:
    """Run the server until it ends; its exit status is ours."""
    FOLDER.mkdir(exist_ok=True)
    if not (FOLDER / NOTEBOOK).exists():
        shutil.copy(ROOT / "binder" / NOTEBOOK, FOLDER / NOTEBOOK)
    port, token = free_port(), secrets.token_urlsafe(24)
    command = [
        sys.executable, "-m", "jupyterlab", "--no-browser", "--ip=127.0.0.1", f"--port={port}",
        "--ServerApp.port_retries=0", f"--ServerApp.root_dir={FOLDER}",
        *(["--allow-root"] if os.geteuid() == 0 else []),
    ]  # fmt: skip
    user = pwd.getpwuid(os.geteuid()).pw_name
    print(f"JupyterLab and its kernels run as {user}; files made in {FOLDER} belong to {user}.")
    print(f"Open http://127.0.0.1:{port}/lab/tree/{NOTEBOOK}?token={token}")
    print("Ctrl-C stops the server.", flush=True)
    # The token goes by the environment: a command line is for everybody to read. The server has a
    # session of its own, so that Ctrl-C reaches it once, from here, as the signal that asks nothing.
    server = subprocess.Popen(
        command,
        env={**os.environ, "JUPYTER_TOKEN": token},
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda _number, _frame: server.terminate())
    return server.wait()


if __name__ == "__main__":
    sys.exit(main())
