"""All tests of crashes once more, while the daemon's time of day jumps in both directions all the time."""

import threading
from pathlib import Path

import pytest

from jupyter_gpuckpt.wire import calls
from tests.daemon import jumping_clock
from tests.daemon.jumping_clock import Clock
from tests.daemon.test_crashes import *  # noqa: F403 - its tests and fixtures

pytestmark = pytest.mark.slow

#: The time between two jumps, in which an operation goes a few steps.
PAUSE_SECONDS = 0.05


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return jumping_clock.build(tmp_path_factory.mktemp("clock"))


@pytest.fixture(autouse=True)
def jumping(library, tmp_path, monkeypatch):
    """Have the clocks of all daemons that are started jump until the test ends."""
    clock, over = Clock(tmp_path / "clock", library), threading.Event()
    for name, value in clock.env.items():
        monkeypatch.setenv(name, value)

    def jump():
        while not over.wait(PAUSE_SECONDS):
            clock.jump()

    thread = threading.Thread(target=jump)
    thread.start()
    yield
    over.set()
    thread.join()


def test_the_daemon_has_that_clock(client, jumping):
    pid = client.send(calls.handshake()).pid
    assert "clock.so" in Path(f"/proc/{pid}/maps").read_text()
