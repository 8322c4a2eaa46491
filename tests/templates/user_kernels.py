"""A user's kernel of an administrator's template. Runs in the user's own process (tests/users/shell.py)."""

from __future__ import annotations

import io
import json
import logging
import os
from pathlib import Path
from typing import Any

from jupyter_client.manager import KernelManager
from traitlets.config import Config

from tests.blocking_clients import printed

FACTS = """
import json, os, pathlib, ssl, uuid
pathlib.Path("made").touch()
print(json.dumps({
    "total": total(), "uid": os.getuid(), "gid": os.getgid(), "groups": os.getgroups(), "home": str(pathlib.Path.home()),
    "owner": os.stat("made").st_uid, "cwd": os.getcwd(), "token": os.environ["TOKEN"],
    "random": ssl.RAND_bytes(8).hex(), "history": str(get_ipython().history_manager.hist_file),
    "capabilities": [line.split()[1] for line in open("/proc/self/status") if line.startswith("CapEff")],
}))
"""


class UserKernel:
    """A kernel of an administrator's template `name`. `folder`: that of the administrator's data and kernelspecs."""

    def __init__(self, folder: str, name: str, token: str, accepted: list[str]) -> None:
        home = Path.home()
        os.environ.update(
            JUPYTER_GPUCKPT_DATA_DIR=str(home / "data"),
            JUPYTER_PATH=f"{folder}/share",
            TOKEN=token,
        )
        config = Config()
        config.GpuCkptProvisioner.shared_templates = accepted
        config.GpuCkptProvisioner.shared_data_dir = f"{folder}/data"
        self.told = io.StringIO()
        log = logging.getLogger("user's kernel")
        log.addHandler(logging.StreamHandler(self.told))
        self.manager = KernelManager(kernel_name=name, config=config, log=log)
        self.manager.start_kernel(cwd=str(home))
        self.client = self.manager.client()
        self.client.start_channels()

    def facts(self) -> dict[str, Any]:
        """Return what the kernel says of itself, and why it is no copy; that is empty if it is one."""
        told: dict[str, Any] = json.loads(printed(self.client, FACTS))
        provisioner: Any = self.manager.provisioner
        why = self.told.getvalue()
        return {**told, "why_no_copy": why * ("is no copy" in why), "pid": provisioner.pid}

    def run(self, code: str) -> str:
        """Run code; return what it prints."""
        return printed(self.client, code)

    def close(self) -> None:
        """End the kernel."""
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)
        self.manager.context.destroy(linger=0)
