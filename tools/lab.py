"""Start JupyterLab with a demo notebook: `make lab`."""

import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / ".lab"
NOTEBOOK = "demo.ipynb"
LOG = FOLDER / "server.log"


def free_port() -> int:
    """Return a free port of the loopback interface."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def answers(port: int) -> bool:
    """Return whether the server takes connections."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def main() -> int:
    """Run the server until it ends, and return its exit status."""
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
    # The token is passed in the environment, because any user can read a command line. The server has a
    # session of its own, so that Ctrl-C reaches it only from here, as a signal after which it asks nothing.
    with LOG.open("wb") as log:
        server = subprocess.Popen(
            command,
            cwd=FOLDER,  # Python looks for modules there first: the checkout is not what is installed
            env={**os.environ, "JUPYTER_TOKEN": token},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda _number, _frame: server.terminate())
    while server.poll() is None and not answers(port):
        time.sleep(0.2)
    if server.poll() is None:
        print(f"Open http://127.0.0.1:{port}/lab/tree/{NOTEBOOK}?token={token}")
        print(f"Ctrl-C stops the server. It logs to {LOG}.", flush=True)
    else:
        print(LOG.read_text(errors="replace"), file=sys.stderr)
    return server.wait()


if __name__ == "__main__":
    sys.exit(main())
