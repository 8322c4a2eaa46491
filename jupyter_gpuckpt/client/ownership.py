"""Owners, as doors introduce themselves to the daemon."""

from __future__ import annotations

import os
import uuid

from ..place import start_time
from ..protocol import Owner, OwnerKind


def this_owner(
    kind: OwnerKind, *, hub_server: str = "", root_dir: str = "", jupyter_runtime_dir: str = ""
) -> Owner:
    """This process as a new owner. `hub_server` names the server at its hub, `root_dir` is where its notebooks are."""
    pid = os.getpid()
    began = start_time(pid) or 0.0
    return Owner(uuid.uuid4().hex, kind, pid, began, hub_server, root_dir, jupyter_runtime_dir)
