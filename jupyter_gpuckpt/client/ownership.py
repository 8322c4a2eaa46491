"""The record by which a server or script registers with the daemon."""

from __future__ import annotations

import os
import uuid

from ..wire.place import start_time
from ..wire.protocol import Owner, OwnerKind


def this_owner(
    kind: OwnerKind,
    *,
    hub_server: str | None = None,
    root_dir: str = "",
    jupyter_runtime_dir: str = "",
    autosave_seconds: float = 0.0,
) -> Owner:
    """Return this process as a new owner, whose notebooks are in `root_dir`.

    `hub_server` names it at its hub, where one user may have several servers, each with its own kernels; by default the
    environment does.
    """
    if hub_server is None:
        hub_server = os.environ.get("JUPYTERHUB_SERVICE_PREFIX", "")
    pid = os.getpid()
    began = start_time(pid) or 0.0
    return Owner(
        uuid.uuid4().hex,
        kind,
        pid,
        began,
        hub_server,
        root_dir,
        jupyter_runtime_dir,
        autosave_seconds,
    )
