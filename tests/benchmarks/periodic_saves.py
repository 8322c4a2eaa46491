"""Saves of a kernel that runs on, by how much has changed since the last one, with and without the tracking of writes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import NamedTuple

from jupyter_client.blocking.client import BlockingKernelClient

from jupyter_gpuckpt.client import Client
from jupyter_gpuckpt.wire import calls
from jupyter_gpuckpt.wire.protocol import Result

from .environment import daemon, kernel
from .measured import Row

_ROUNDS = 7
_LARGE = "import numpy; a = numpy.random.default_rng(1).integers(0, 1 << 60, (2 << 30) // 8)"


class _Kind(NamedTuple):
    """A kernel, what changes in it between two saves, and the budgets of its saves, in seconds: of processor time, of the pause."""

    name: str
    setup: str
    change: str
    processor_seconds: float | None = None
    pause_seconds: float | None = None


_KINDS = (
    _Kind("small kernel", "x = 1", "x += 1", 0.4, 0.06),
    _Kind("numpy and pandas", "import numpy, pandas; x = 1", "x += 1", 0.4, 0.09),
    _Kind("2 GB, nothing changed", _LARGE, "pass", 0.6),
    _Kind("2 GB, 50 MB changed", _LARGE, "a[:6_250_000] += 1"),
)


def run() -> Iterator[Row]:
    """Measure saves of each kind of kernel; the first two saves of a kernel do not count."""
    for kind in _KINDS:
        for is_tracked in (False, True):
            os.environ["JUPYTER_GPUCKPT_TRACK_WRITES"] = str(int(is_tracked))
            with daemon() as client, kernel(kind.setup) as (kernel_id, channel):
                found = [_save(client, kernel_id, channel, kind.change) for _ in range(_ROUNDS + 2)]
            del os.environ["JUPYTER_GPUCKPT_TRACK_WRITES"]
            name = f"{kind.name}; {'tracked' if is_tracked else 'all is read'}"
            budgets = (kind.processor_seconds, kind.pause_seconds) if is_tracked else (None, None)
            cost = [one.processor_seconds for one in found[2:]]
            pauses = [one.frozen_seconds for one in found[2:]]
            yield Row(f"{name}: processor time", cost, budget=budgets[0])
            yield Row(f"{name}: pause", pauses, budget=budgets[1])


def _save(client: Client, kernel_id: str, channel: BlockingKernelClient, change: str) -> Result:
    channel.execute_interactive(change, timeout=300, output_hook=lambda message: None)
    return client.wait(client.send(calls.save(kernel_id)).operation_id)
