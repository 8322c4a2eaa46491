"""The unix sockets on which a kernel listens for its clients, with Jupyter's transport `ipc`, and the folder that they lie in.

The kernel knows its sockets by their names for ever. So a second kernel from the same snapshot sees another folder at the place of the
first one's, and clients reach each kernel in that kernel's own folder.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec


class OwnSockets(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The names to which the sockets are bound, and the folder in which clients find them.

    `folder`: it contains nothing else; empty if the names are in a folder with other files.
    """

    names: list[str] = []
    folder: str = ""

    @property
    def place(self) -> str:
        """Return the folder in which the kernel itself sees the sockets."""
        return str(Path(self.names[0]).parent) if self.names else ""


def moved_address(connection: dict[str, Any], folder: str) -> dict[str, Any]:
    """Return Jupyter's connection info of a kernel whose clients find its sockets in `folder`; unchanged for an empty one."""
    if not folder:
        return connection
    return {**connection, "ip": str(Path(folder) / Path(str(connection["ip"])).name)}
