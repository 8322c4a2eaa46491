"""Updating a resumed kernel to its new server: environment variables and ports."""

from __future__ import annotations

import os
from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Any

from ipykernel.kernelapp import IPKernelApp

#: Variables that keep the value with which the kernel was launched.
_KEPT = frozenset({"JPY_PARENT_PID"})
_GPUS = "CUDA_VISIBLE_DEVICES"


def take_variables(environment: dict[str, str], renewed: Iterable[str], visible_gpus: str) -> None:
    """Replace the variables whose names match one of `renewed`, the server's variables, by those of this server.

    `visible_gpus`: the server's CUDA_VISIBLE_DEVICES. The kernel's own value stays if it names only GPUs among these: its
    kernelspec may have chosen it.
    """
    patterns = list(renewed)
    for name in set(os.environ) - _KEPT - set(environment):
        if any(fnmatchcase(name, pattern) for pattern in patterns):
            del os.environ[name]
    os.environ.update({name: environment[name] for name in set(environment) - _KEPT})
    own = os.environ.get(_GPUS)
    if visible_gpus and (own is None or not _listed(own) <= _listed(visible_gpus)):
        os.environ[_GPUS] = visible_gpus


def _listed(gpus: str) -> set[str]:
    return {gpu.strip() for gpu in gpus.split(",")}


def take_ports(moved_ports: dict[str, int], connection_file: str, iopub: Any) -> None:
    """Set ipykernel's ports to the current ones: it reports them to clients, and connects to two of them itself."""
    app, moved = IPKernelApp.instance(), {int(before): now for before, now in moved_ports.items()}
    app.connection_file = connection_file  # ipykernel removes this file when it exits
    shell = app.shell_port
    for name in ("shell_port", "iopub_port", "stdin_port", "control_port", "hb_port"):
        if (port := getattr(app, name)) in moved:
            setattr(app, name, moved[port])
    if (pipe := getattr(iopub, "_pipe_port", None)) in moved:
        iopub._pipe_port = moved[pipe]  # forked children send their output there
    if (debugger := getattr(app, "debug_shell_socket", None)) and shell in moved:
        address = f"{app.transport}://{app.ip}:"
        debugger.disconnect(f"{address}{shell}")
        debugger.connect(f"{address}{moved[shell]}")
