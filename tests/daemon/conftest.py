"""A daemon of the test's own, found and started as clients do it, with real kernels."""

from __future__ import annotations

import os
import sys
import time
import uuid
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from jupyter_gpuckpt.client import Client, starting, this_owner
from jupyter_gpuckpt.errors import KernelNotFound, SnapshotInUse
from jupyter_gpuckpt.wire import calls, daemon_settings
from jupyter_gpuckpt.wire.manifest_records import SCRATCH, LaunchSpec
from jupyter_gpuckpt.wire.protocol import OwnerKind
from jupyter_gpuckpt.wire.snapshot_records import UploadState
from tests.conftest import wait_for
from tests.live_files import entries_below
from tests.programs import NOISE
from tests.remote import servers
from tests.remote.installations import Reader, add_remote, save, store_of

#: For what a loaded machine does.
LONG = 300.0
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
#: Counts in a file, and holds as many random bytes as its second argument says, so that a save takes long enough to be met.
LARGE = f"""
{NOISE}; import sys, time
data, count = noise(int(sys.argv[2])), 0
while True:
    count += 1
    with open(sys.argv[1], "w") as file:
        file.write(str(count))
    time.sleep(0.01)
"""


@pytest.fixture
def eventually():
    """Return the function that waits until something is true and returns it."""
    return wait_for


@pytest.fixture
def emptied_daemon_env(short_dir, module_daemon_env):
    """Yield the environment of one daemon for all tests of a module, which has no kernels and snapshots when a test begins.

    Modules that use it define `daemon_env` by it. A test may kill that daemon: the next test starts another one.
    """
    yield module_daemon_env
    with (
        pytest.MonkeyPatch.context() as patched,
        Client.connect(settings_in(module_daemon_env, patched)) as client,
    ):
        wait_for(lambda: has_no_kernel(client))
        for snapshot in client.send(calls.snapshots()):
            client.send(calls.annotate(snapshot.snapshot_id, pinned=False))
            wait_for(lambda snapshot=snapshot: is_deleted(client, snapshot.snapshot_id))


def is_deleted(client, snapshot_id):
    """Delete a snapshot; return whether that was possible. The record of a kernel that has just ended may still be on the disk."""
    try:
        client.send(calls.delete_snapshot(snapshot_id))
    except SnapshotInUse:
        return False
    return True


def has_no_kernel(client):
    """Kill all kernels; return whether there was none."""
    kernels = client.send(calls.kernels())
    for kernel in kernels:
        with suppress(KernelNotFound):
            client.send(calls.kill(kernel.kernel_id))
    return not kernels


@pytest.fixture
def settings(daemon_env, monkeypatch):
    """Return the settings of this test's daemon, which is the one that every client of the test's process finds."""
    return settings_in(daemon_env, monkeypatch)


def settings_in(env, monkeypatch):
    """Return the settings of this environment's daemon, and let every client of this process find it."""
    for name, value in env.items():
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
        for _ in range(100):
            with suppress(FileNotFoundError):
                if text := (short_dir / kernel_id).read_text():
                    return int(text)
                time.sleep(0.01)  # it is just being written
                continue
            break
        return 0

    return read


@pytest.fixture
def left_in_scratch():
    """Return a function that lists what no operation may leave in a kernel's scratch, by the pid of its init."""
    kept = {
        "copy",
        "criu.kdat",
        "keeper",
        "notify",
        "notify.socket",
        "hold.socket",
        "landlock-unused",
        "ferry",
        "outside-signals.so",
        "secrets",
        "record",
        "images",
        "gpu",
        "hidden",
    }

    def look(init_pid):
        return {path.name for path in entries_below(Path(f"/proc/{init_pid}/root{SCRATCH}"))} - kept

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


@pytest.fixture
def credentials(monkeypatch):
    """Have the daemon find those of the server that runs here."""
    for name, value in servers.s3_variables().items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def add(settings, short_dir):
    """Return a function that adds a remote, a folder unless its URL is given."""

    def added(name="offsite", url="", **fields):
        return add_remote(settings.data, name, url or f"file://{short_dir}/{name}", **fields)

    return added


@pytest.fixture
def snapshots(settings):
    """Return a function that makes snapshots before there is a daemon; the last one is the newest."""

    def make(**contents):
        with store_of(settings.data) as store:
            for number, (snapshot_id, chunks) in enumerate(contents.items()):
                save(store, snapshot_id, *chunks, created=1.0 + number)

    return make


@pytest.fixture
def state_of(settings):
    """Return a function that says how far a snapshot is on its way to a remote; None if it is not to go there."""

    def find(client, snapshot_id, remote="offsite"):
        for info in client.send(calls.snapshots()):
            if info.snapshot_id == snapshot_id:
                return next((one for one in info.uploads if one.remote == remote), None)
        return None

    return find


@pytest.fixture
def uploaded(state_of, eventually):
    """Return a function that waits until a remote has a snapshot."""

    def wait(client, *snapshot_ids, remote="offsite"):
        for snapshot_id in snapshot_ids:
            eventually(
                lambda one=snapshot_id: (
                    (found := state_of(client, one, remote)) is not None
                    and found.state is UploadState.UPLOADED
                ),
                LONG,
            )

    return wait


@pytest.fixture
def reader(settings):
    """Return a function that opens a remote as another machine would."""

    def opened(name="offsite"):
        return Reader(settings.data, name)

    return opened
