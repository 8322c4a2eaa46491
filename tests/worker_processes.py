"""Fixtures of tests of the processes that pack and unpack."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from jupyter_gpuckpt.host import processes
from jupyter_gpuckpt.images import worker_processes
from tests.conftest import wait_for


def working() -> list[int]:
    """Return the worker processes that exist."""
    return processes.children(worker_processes._fork_server.pid or 0)


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let worker processes do also what is small, and check that none is left."""
    monkeypatch.setattr(worker_processes, "_MIN_BYTES", 1)
    yield
    gc.collect()
    wait_for(lambda: not working())
