"""What a server leaves in a program that it runs in: no task, and so no socket either."""

import json
import subprocess
import sys

# A kernel that never answers keeps whoever waits for it; one that was shut down can be had back for a while.
PROGRAM = """
import asyncio, sys
from jupyter_server.serverapp import ServerApp

async def main(folder):
    app = ServerApp()
    extensions = {"jupyter_gpuckpt": True, "jupyterlab": False, "jupyter_lsp": False,
                  "notebook": False, "notebook_shim": False}
    app.jpserver_extensions = extensions
    app.initialize([f"--ServerApp.root_dir={folder}", "--allow-root"], new_httpserver=False)
    kernels = app.kernel_manager
    for name in ("silent", "silent", "python3"):
        last = await kernels.start_kernel(kernel_name=name)
    await kernels.shutdown_kernel(last)
    tasks = ours()
    await app._cleanup()
    print(len(tasks), len(kernels.gpuckpt_owner.served), ours())

def ours():
    return [task for task in asyncio.all_tasks() if "jupyter_gpuckpt" in repr(task)]

asyncio.run(main(sys.argv[1]))
"""


def test_a_server_that_ends_inside_another_program_leaves_no_task(daemon_env, tmp_path):
    spec = {"argv": ["sleep", "1000"], "display_name": "Silent", "language": "none"}
    folder = tmp_path / "share" / "kernels" / "silent"
    folder.mkdir(parents=True)
    (folder / "kernel.json").write_text(json.dumps(spec))
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)],
        env={**daemon_env, "JUPYTER_PATH": str(tmp_path / "share")},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    # The first number says that there was something to end.
    before, kernels, left = done.stdout.split(maxsplit=2)
    assert (int(before) > 0, kernels, left.strip()) == (True, "0", "[]"), done.stdout + done.stderr
