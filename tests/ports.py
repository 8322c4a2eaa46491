"""Ports for the servers of tests, of which several run at the same time."""

from __future__ import annotations

from jupyter_gpuckpt.ports import HeldPorts

_held: list[HeldPorts] = []


def free_port() -> int:
    """A port of 127.0.0.1 on which this test's server may listen, again and again; nobody else gets it in this run."""
    held = HeldPorts.free(1)
    _held.append(held)
    return held.ports[0]
