"""The folders of kernels whose clients reach them through unix sockets (Jupyter's transport `ipc`): one for each kernel."""

from __future__ import annotations

import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

#: The beginning of the sockets' names, which end with the number of a channel; the longest name of a socket (man 7 unix).
SOCKETS = "k"
_LONGEST = 107
_ENDING = "-ipc"


def make(kernel_id: str) -> Path:
    """Make a folder for the sockets of a kernel, in Jupyter's runtime directory or, if its path is too long, elsewhere."""
    from jupyter_core.paths import jupyter_runtime_dir  # noqa: PLC0415 - slow

    folder = Path(jupyter_runtime_dir(), f"kernel-{kernel_id}{_ENDING}")
    if len(str(folder)) + len(f"/{SOCKETS}-65535") > _LONGEST:
        return Path(tempfile.mkdtemp(prefix="kernel-", suffix=_ENDING))
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


def of(connection: dict[str, Any]) -> Path | None:
    """Return the folder that was made for the sockets of a kernel with this connection info; None if there is none."""
    address = Path(str(connection.get("ip", "")))
    is_ours = address.name == SOCKETS and address.parent.name.endswith(_ENDING)
    return address.parent if connection.get("transport") == "ipc" and is_ours else None


def remove(folder: Path) -> None:
    """Remove the folder of a kernel that has ended, with what is left of its sockets."""
    with suppress(OSError):
        for path in folder.iterdir():
            if path.is_socket():
                path.unlink()
        folder.rmdir()
