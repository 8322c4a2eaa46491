"""A daemon that is killed while processes check what it fetches leaves no process and a whole store, and the next one fetches all of it."""

from __future__ import annotations

import os
import random
import secrets
import signal
import time
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest

from jupyter_gpuckpt.client import Client
from jupyter_gpuckpt.errors import DaemonUnavailable
from jupyter_gpuckpt.host import processes
from jupyter_gpuckpt.store.local import LocalStore
from jupyter_gpuckpt.wire import calls
from jupyter_gpuckpt.wire.protocol import OperationState
from jupyter_gpuckpt.wire.remote_listings import FetchRequest
from jupyter_gpuckpt.wire.states import KernelState
from tests.conftest import processes_naming, wait_for
from tests.daemon.conftest import LONG
from tests.daemon.test_crashes_at_every_step import Dying
from tests.live_files import bytes_below
from tests.remote import servers, shared_servers
from tests.remote.installations import content_of, save, some_chunks, store_of
from tests.remote.joined import join

CHECKING_DAEMON = Path(__file__).with_name("checking_daemon.py")
#: When a worker has just been given a run: see there.
GIVEN = "given"
#: The processes that check: as in that program.
WORKERS = 2
PACKAGE = "jupyter_gpuckpt."
#: The end of a fetch: when the snapshot is listed.
PUBLISHED = PACKAGE + "store.local.LocalStore.publish"
#: Other moments of a fetch, in their order: the ends of these methods.
METHODS = (
    PACKAGE + "remote.check_client.CheckingProcesses.__enter__",
    PACKAGE + "remote.fetch._Fetching.add",
    PACKAGE + "remote.check_client._Worker.check",
    PACKAGE + "store.writer.PackWriter.append_all",
    PACKAGE + "remote.fetch._Fetching.run",
    PACKAGE + "store.writer.PackWriter.finish",
    PUBLISHED,
)
REQUEST = FetchRequest(force=True)
#: The moments of a fetch with which a resume begins.
RESUME_MOMENTS = (GIVEN, *(one for one in METHODS if one != PUBLISHED))
MINE = some_chunks(1, 1)
#: In as many packs as it has chunks.
CONTENT = some_chunks(2, 12)
PACK_BYTES = 1 << 20
#: How often a daemon is killed at random moments, and how much it fetches meanwhile.
RANDOM_KILLS, MANY = 12, 60

pytestmark = pytest.mark.usefixtures("credentials")


@pytest.fixture
def at_remote(pytestconfig, settings, short_dir):
    """Return a function that has another machine upload a snapshot to an object store, which this machine has as remote, too."""

    def uploaded(*content):
        remote = servers.s3_remote(
            shared_servers.seaweedfs(pytestconfig), f"p{secrets.token_hex(6)}"
        )
        there = join(short_dir / "there", remote)
        with LocalStore(short_dir / "there/store") as store:
            save(store, "theirs", *content)
            there.upload(store, "theirs", pack_bytes=PACK_BYTES)
        with store_of(settings.data) as store:
            save(store, "mine", *MINE)
        join(settings.data, remote, there.line)
        return remote.name

    return uploaded


@pytest.fixture
def dying(settings, short_dir, eventually):
    """Return a function that starts a daemon which dies at a moment of a fetch."""
    started = []

    def start(moment="", settings=settings):
        (short_dir / "die-at").write_text(moment)
        made = Dying(settings, short_dir / "die-at", eventually, METHODS, CHECKING_DAEMON)
        started.append(made)
        return made

    yield start
    for one in started:
        one.end()


@pytest.fixture
def nothing_runs(short_dir, eventually):
    """Return a function that waits until no process of this machine's daemon is left."""
    return lambda: eventually(lambda: not processes_naming(short_dir))


def begin_fetch(settings, remote):
    """Begin to fetch; the daemon may be dead before it has answered."""
    with Client.connect(settings) as client, suppress(DaemonUnavailable):
        client.send(calls.fetch(remote, "theirs", REQUEST))


def fetch_again(settings, remote):
    """Check that the next daemon finds a whole store, let it fetch again, and return the snapshots that it found."""
    with Client.connect(settings) as client:
        listed = {info.snapshot_id for info in client.send(calls.snapshots())}
        assert listed >= {"mine"}
        for snapshot_id in listed:
            assert client.send(calls.verify(snapshot_id)).ok
        if "theirs" not in listed:
            # The killed daemon had the lease of the session: nobody has to take it over.
            assert client.send(calls.fetch_estimate(remote, "theirs")).session.leased_to == ""
            client.wait(client.send(calls.fetch(remote, "theirs", REQUEST)).operation_id)
            assert client.send(calls.verify("theirs")).ok
        pid = client.send(calls.handshake()).pid
        os.kill(pid, signal.SIGKILL)
    # A zombie may have threads that still hold its files, and it stays where nobody waits for it.
    wait_for(lambda: processes.state(pid) in (None, "Z") and len(processes.threads(pid)) <= 1)
    return listed


def check_bytes(settings, content):
    """Compare every byte that the store has."""
    with LocalStore(settings.data / "store") as store:
        assert content_of(store, "mine") == MINE
        assert content_of(store, "theirs") == content


@pytest.mark.parametrize(
    "moment",
    [GIVEN, *(pytest.param(one, marks=pytest.mark.slow) for one in METHODS)],
    ids=lambda moment: moment.rpartition(".")[2],
)
def test_a_daemon_killed_during_a_fetch_leaves_no_process_and_a_whole_store(
    settings, at_remote, dying, nothing_runs, moment
):
    remote = at_remote(*CONTENT)
    daemon = dying(moment)
    begin_fetch(settings, remote)
    daemon.wait()
    nothing_runs()
    listed = fetch_again(settings, remote)
    assert ("theirs" in listed) is (moment == PUBLISHED)
    nothing_runs()
    check_bytes(settings, CONTENT)


@pytest.fixture
def remote_kernel(settings, pytestconfig, add, nothing_runs, owner_of, spec, counts, eventually):
    """Suspend a kernel, wait until only an object store has its memory, end the daemon, and return the kernel's id."""
    there = servers.s3_remote(shared_servers.seaweedfs(pytestconfig), f"p{secrets.token_hex(6)}")
    add(url=there.url, settings=there.settings)
    near = msgspec.structs.replace(settings, near_bytes=1)
    with Client.connect(near) as client, owner_of(client) as owner:
        kernel_id = client.send(calls.launch(owner.owner_id, spec())).kernel_id
        eventually(lambda: counts(kernel_id), LONG)
        client.wait(client.send(calls.suspend(kernel_id)).operation_id)
        eventually(lambda: client.send(calls.snapshots())[0].remote_only == "offsite", LONG)
        stored = client.send(calls.snapshots())[0].sizes.stored_bytes
        eventually(lambda: bytes_below(settings.data / "store/packs") < stored / 5, LONG)
        os.kill(client.send(calls.handshake()).pid, signal.SIGKILL)
    nothing_runs()
    return kernel_id


@pytest.mark.slow
@pytest.mark.parametrize("moment", RESUME_MOMENTS, ids=lambda moment: moment.rpartition(".")[2])
def test_a_daemon_killed_while_a_resume_fetches_costs_no_kernel(
    settings, remote_kernel, dying, nothing_runs, owner_of, counts, eventually, moment
):
    count = counts(remote_kernel)
    daemon = dying(moment)
    with Client.connect(settings) as client, suppress(DaemonUnavailable):
        client.send(calls.resume(remote_kernel))
    daemon.wait()
    nothing_runs()
    with Client.connect(settings) as client, owner_of(client):
        assert client.send(calls.kernel(remote_kernel)).state is KernelState.SUSPENDED
        [snapshot] = client.send(calls.snapshots())
        assert snapshot.remote_only == "offsite"
        client.wait(client.send(calls.resume(remote_kernel)).operation_id)
        assert client.send(calls.verify(snapshot.snapshot_id)).ok
        eventually(lambda: counts(remote_kernel) > count, LONG)


@pytest.mark.slow
def test_daemons_killed_at_random_moments_of_a_fetch_cost_nothing(
    settings, at_remote, dying, nothing_runs
):
    content, chance = some_chunks(3, MANY), random.Random(62)
    remote, cut_off = at_remote(*content), 0

    def is_at_work():
        """Return whether the fetch runs with the fork server and its workers, or has ended."""
        if client.send(calls.operation(begun)).state is not OperationState.RUNNING:
            return True
        return len(processes.descendants(daemon.pid)) > WORKERS

    for number in range(RANDOM_KILLS):
        daemon = dying()
        with Client.connect(settings) as client:
            begun = client.send(calls.fetch(remote, "theirs", REQUEST)).operation_id
            if number % 2:  # the other half at any moment
                wait_for(is_at_work)
            time.sleep(chance.uniform(0, 0.1 if number % 2 else 0.7))
            at_work = processes.descendants(daemon.pid)
            is_cut_off = client.send(calls.operation(begun)).state is OperationState.RUNNING
            os.kill(daemon.pid, signal.SIGKILL)
        daemon.wait()
        # While the fetch ran, with the fork server and its workers.
        cut_off += is_cut_off and len(at_work) > WORKERS
        nothing_runs()
        fetch_again(settings, remote)
        nothing_runs()
        check_bytes(settings, content)
        with LocalStore(settings.data / "store") as store:
            store.delete("theirs")
    assert cut_off >= RANDOM_KILLS // 4
