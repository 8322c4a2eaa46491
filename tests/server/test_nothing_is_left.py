"""What a server leaves in a program that it runs in: no task, and so no socket either."""

import json
import subprocess
import sys

import pytest

PROGRAM = """
import asyncio, sys
from jupyter_gpuckpt.wire import calls
from jupyter_gpuckpt.client import Client
from jupyter_server.serverapp import ServerApp

async def main(folder):
    app = ServerApp()
    extensions = {"jupyter_gpuckpt": True, "jupyterlab": False, "jupyter_lsp": False,
                  "notebook": False, "notebook_shim": False}
    app.jpserver_extensions = extensions
    app.initialize([f"--ServerApp.root_dir={folder}", "--allow-root"], new_httpserver=False)
    kernels = app.kernel_manager
    BODY
    tasks = ours()
    await app._cleanup()
    states = {str(kernel.state) for kernel in Client.connect().send(calls.kernels())}
    print(len(tasks), len(kernels.gpuckpt_owner.served), *states, ours())

def ours():
    return [task for task in asyncio.all_tasks() if "jupyter_gpuckpt" in repr(task)]

asyncio.run(main(sys.argv[1]))
"""

# A kernel that never answers keeps whoever waits for it; one that was shut down can be had back for a while.
STARTED = """
    for name in ("silent", "silent", "python3"):
        last = await kernels.start_kernel(kernel_name=name)
    await kernels.shutdown_kernel(last)
"""
STARTING = """
    kernels.use_pending_kernels = True
    await kernels.start_kernel(kernel_name="silent")
"""


@pytest.mark.parametrize("body", [STARTED, STARTING], ids=["started", "starting"])
def test_a_server_that_ends_inside_another_program_leaves_no_task(daemon_env, tmp_path, body):
    spec = {"argv": ["sleep", "1000"], "display_name": "Silent", "language": "none"}
    folder = tmp_path / "share" / "kernels" / "silent"
    folder.mkdir(parents=True)
    (folder / "kernel.json").write_text(json.dumps(spec))
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.replace("BODY", body.strip()), str(tmp_path)],
        env={**daemon_env, "JUPYTER_PATH": str(tmp_path / "share")},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    # The first number says that there was something to end.
    before, *after = done.stdout.split()
    assert int(before) > 0
    assert after == ["0", "suspended", "[]"], done.stdout + done.stderr
    assert "Traceback" not in done.stderr
