"""Ports for the servers of tests, of which several run at the same time."""

from __future__ import annotations

import random
import socket
from contextlib import suppress
from pathlib import Path

from jupyter_gpuckpt.linux.ports import HeldPorts

#: Ports below these are given to nobody who does not ask for one by its number.
_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")

_held: list[HeldPorts] = []


def free_port() -> int:
    """Return a port of 127.0.0.1 on which this test's server may listen, again and again; nobody else gets it in this run."""
    held = HeldPorts.free(1)
    _held.append(held)
    return held.ports[0]


def unused_port() -> int:
    """Return a port that is free, and that no connection of a test beside this one gets by chance."""
    lowest = int(_RANGE.read_text().split()[0])
    while True:
        port = random.randrange(lowest // 2, lowest)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
