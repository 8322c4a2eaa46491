"""The connection file of a kernel, for programs that neither started nor branched it."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from ..wire.protocol import Kernel


def connection_file_of(kernel: Kernel) -> Path | None:
    """Return a kernel's connection file: in Jupyter's runtime directory, else that of its process's arguments; None without one."""
    from jupyter_core.paths import jupyter_runtime_dir  # noqa: PLC0415 - slow

    path = Path(jupyter_runtime_dir(), f"kernel-{kernel.kernel_id}.json")
    if path.exists():
        return path
    with suppress(OSError):  # it has no process, or one of another user
        arguments = Path(f"/proc/{kernel.pid}/cmdline").read_bytes().split(b"\0")
        for one in arguments:
            named = Path(one.decode(errors="replace").rpartition("=")[2])
            if named.suffix == ".json" and named.is_file():
                return named
    return None
