"""Sources of notices, each read in a thread of its own, and the services that they ask."""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import aclosing, contextmanager, suppress

import pytest

from jupyter_gpuckpt.daemon.reclaim import polling
from jupyter_gpuckpt.daemon.reclaim.endpoints import Endpoint
from jupyter_gpuckpt.wire.reclaim_records import now
from tests.conftest import PATIENCE
from tests.reclaim import doubles

#: A factor of the pauses of sources: a real one asks every five seconds.
PACE = 0.01


class Reading:
    """What sources have yielded so far, in a thread."""

    def __init__(self, make):
        self._make = make
        self.notices = []
        self._task = None
        self._loop = None
        self._thread = threading.Thread(target=lambda: asyncio.run(self._read()))

    async def _read(self):
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        endpoint, sources = self._make()
        try:
            with suppress(asyncio.CancelledError):
                async with aclosing(polling.merged(sources)) as found:
                    async for notice in found:
                        self.notices.append(notice)
        finally:
            endpoint.close()
            # Tornado's tasks may still be connecting, or learn only now that their connections are closed.
            if others := asyncio.all_tasks() - {asyncio.current_task()}:
                await asyncio.wait(others, timeout=PATIENCE)

    def start(self):
        self._thread.start()

    def stop(self):
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._task.cancel)
        self._thread.join()

    def until(self, count):
        """Wait for so many notices and return them."""
        eventually(lambda: len(self.notices) >= count)
        assert len(self.notices) == count, self.notices
        return self.notices


def eventually(condition):
    deadline = time.monotonic() + PATIENCE
    while not (value := condition()):
        assert time.monotonic() < deadline, "did not come true in time"
        time.sleep(0.005)
    return value


@contextmanager
def reading(make):
    """Read the sources that `make` returns with their endpoint."""
    found = Reading(make)
    found.start()
    try:
        yield found
    finally:
        found.stop()


@pytest.fixture
def read():
    """Return a function that begins to read the sources of a module from a double."""
    running = []

    def begin(module, double, pace=PACE, **options):
        def make():
            endpoint = Endpoint(double.url)
            return endpoint, module.sources(endpoint, pace=pace, **options)

        found = reading(make)
        running.append(found)
        return found.__enter__()

    yield begin
    for one in running:
        one.__exit__(None, None, None)


@pytest.fixture
def aws():
    with doubles.serving(doubles.Aws()) as double:
        yield double


@pytest.fixture
def gcp():
    with doubles.serving(doubles.Gcp()) as double:
        yield double


@pytest.fixture
def azure():
    with doubles.serving(doubles.Azure()) as double:
        yield double


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Shorten the pauses after a failure."""
    monkeypatch.setattr(polling, "FIRST_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(polling, "MAX_PAUSE_SECONDS", 0.05)


@pytest.fixture
def left():
    """Return a function that says how many seconds a notice leaves."""
    return lambda notice: notice.deadline - now()
