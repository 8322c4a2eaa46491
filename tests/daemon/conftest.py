"""A daemon of the test's own, found and started as doors do it, with real kernels."""

from __future__ import annotations

import os
import sys
import time
import uuid
from contextlib import contextmanager
from pathlib import Path

import pytest

from jupyter_gpuckpt import calls, daemon_settings
from jupyter_gpuckpt.client import Client, starting, this_owner
from jupyter_gpuckpt.model import SCRATCH, LaunchSpec
from jupyter_gpuckpt.protocol import OwnerKind

#: Counts in a file, so that a test sees whether it runs, and says when it is interrupted.
COUNTER = """
import sys, time
count = 0
while True:
    try:
        count += 1
        with open(sys.argv[1], "w") as file:
            file.write(str(count))
        time.sleep(0.01)
    except KeyboardInterrupt:
        with open(sys.argv[1] + ".interrupted", "w") as file:
            file.write("yes")
"""


@pytest.fixture
def eventually():
    """Wait until something is true and return it."""

    def wait(condition, seconds=10.0):
        deadline = time.monotonic() + seconds
        while not (value := condition()):
            assert time.monotonic() < deadline, "did not come true in time"
            time.sleep(0.01)
        return value

    return wait


@pytest.fixture
def settings(daemon_env, monkeypatch):
    """The settings of this test's daemon, which is the one that every client of the test's process finds."""
    for name, value in daemon_env.items():
        if name.startswith("JUPYTER_GPUCKPT_"):
            monkeypatch.setenv(name, value)
    return daemon_settings.from_environment()


@pytest.fixture
def client(settings):
    """Return a client of a daemon that runs."""
    with Client.connect(settings) as connected:
        yield connected


@pytest.fixture
def events():
    """Return the list to which the owner's stream adds its events."""
    return []


@pytest.fixture
def owner_of():
    """Return a function that connects an owner to a client's daemon."""

    @contextmanager
    def connected(client, kind=OwnerKind.SERVER, on_event=lambda event: None, **fields):
        owner = this_owner(kind, root_dir=fields.pop("root_dir", "/tmp"), **fields)
        with client.hold(owner, on_event):
            yield owner

    return connected


@pytest.fixture
def owner(client, owner_of, events):
    """Connect an owner that is a server."""
    with owner_of(client, on_event=events.append) as server:
        yield server


@pytest.fixture
def spec(short_dir):
    """Return a function that makes launch records: of a counter, or of any program."""

    def make(argv=None, **changes):
        kernel_id = changes.pop("kernel_id", str(uuid.uuid4()))
        changes.setdefault("secrets", {"key": "not-for-the-log"})
        argv = argv or [sys.executable, "-c", COUNTER, str(short_dir / kernel_id)]
        env = {"PATH": os.environ["PATH"], "SECRET": "not-for-the-log"}
        log_path = str(short_dir / f"{kernel_id}.log")
        return LaunchSpec(kernel_id, argv, env, "/tmp", log_path, **changes)

    return make


@pytest.fixture
def counts(short_dir):
    """Return a function that reads what a counter has counted so far."""

    def read(kernel_id):
        try:
            return int((short_dir / kernel_id).read_text() or 0)
        except FileNotFoundError:
            return 0

    return read


@pytest.fixture
def left_in_scratch():
    """Return a function that lists what no operation may leave in a kernel's scratch, by the pid of its init."""
    kept = {
        "criu.kdat",
        "keeper",
        "notify",
        "notify.socket",
        "outside-signals.so",
        "secrets",
        "images",
        "gpu",
        "hidden",
    }

    def look(init_pid):
        return {path.name for path in Path(f"/proc/{init_pid}/root{SCRATCH}").rglob("*")} - kept

    return look


@pytest.fixture
def target(settings):
    """Return the target under which clients find the daemon."""
    return starting.target(settings, start=True)


@pytest.fixture
def kernel(client, owner, spec, counts, eventually):
    """Launch a counter and return its record."""
    launched = client.send(calls.launch(owner.owner_id, spec(jupyter={"key": "not-for-the-log"})))
    eventually(lambda: counts(launched.kernel_id))
    return launched
