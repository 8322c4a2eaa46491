"""Where the relay listens: it writes that to a file, which the stand-in reads. This module imports nothing but os."""

from __future__ import annotations

import os

#: The version of what a stand-in and the relay say to each other.
PROTOCOL = 1


def relay_folder() -> str:
    """Return the relay's folder in the data directory."""
    above = os.environ.get("XDG_DATA_HOME") or os.path.expanduser("~/.local/share")  # noqa: PTH111 - pathlib is slow to import
    data = os.environ.get("JUPYTER_GPUCKPT_DATA_DIR") or f"{above}/jupyter-gpuckpt"
    return f"{os.path.abspath(os.path.expanduser(data))}/relay"  # noqa: PTH100, PTH111


def address_file() -> str:
    """Return the file with the address of this boot and container: a home may be that of several machines."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:  # noqa: PTH123
        boot = file.read().strip()
    spaces = [os.stat(f"/proc/self/ns/{name}").st_ino for name in ("pid", "net", "mnt")]  # noqa: PTH116
    return f"{relay_folder()}/at/{boot}-{spaces[0]}-{spaces[1]}-{spaces[2]}"


def spoken_address() -> str:
    """Return the path of the relay's socket. Raises FileNotFoundError if no relay has run since the machine's start."""
    with open(address_file(), encoding="utf-8") as file:  # noqa: PTH123
        return file.read()
