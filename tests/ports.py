"""Ports for the servers of tests, of which several run at the same time."""

from __future__ import annotations

import socket

from jupyter_gpuckpt.host.ports import HeldPorts

_held: list[HeldPorts] = []


def free_port() -> int:
    """A port of 127.0.0.1 on which this test's server may listen, again and again; nobody else gets it in this run."""
    while True:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port: int = probe.getsockname()[1]
        ports = HeldPorts([port])
        ports.hold()
        # In the moment between the two somebody else may have been quicker.
        if not ports.missing:
            _held.append(ports)
            return port
