"""Run in a system: a kernel with a value is saved, suspended and resumed by the command, and has its value."""

import os
import subprocess
import sys
from pathlib import Path

from jupyter_client.manager import start_new_kernel

os.environ["JUPYTER_DEFAULT_PROVISIONER_NAME"] = "gpuckpt-provisioner"
manager, client = start_new_kernel(startup_timeout=180)
try:
    client.execute("x = 41", reply=True, timeout=60)
    for verb in ("save", "suspend", "resume"):
        command = Path(sys.executable).with_name("jupyter-gpuckpt")
        subprocess.run([command, verb, manager.kernel_id], check=True)
    reply = client.execute("", user_expressions={"it": "x + 1"}, reply=True, timeout=60)
    print("value:", reply["content"]["user_expressions"]["it"]["data"]["text/plain"])
finally:
    client.stop_channels()
    manager.shutdown_kernel(now=True)
