"""What suspended and parked kernels have given back is counted, also over the death of the daemon."""

import asyncio
import os
import signal

import pytest

from jupyter_gpuckpt.client import Client, this_owner
from jupyter_gpuckpt.daemon.kernels.given_back import GivenBackSums
from jupyter_gpuckpt.daemon.kernels.kernel_records import KernelRecord, Records
from jupyter_gpuckpt.daemon.kernels.kernels import Kernels
from jupyter_gpuckpt.daemon.kernels.machine import Machine
from jupyter_gpuckpt.daemon.kernels.streams import Streams
from jupyter_gpuckpt.daemon.remotes.remote_copies import local_chunks
from jupyter_gpuckpt.wire import calls, place
from jupyter_gpuckpt.wire.daemon_settings import Settings
from jupyter_gpuckpt.wire.manifest_records import LaunchSpec, Sizes
from jupyter_gpuckpt.wire.protocol import OwnerKind
from jupyter_gpuckpt.wire.snapshot_records import GivenBack
from jupyter_gpuckpt.wire.states import KernelState

NOW, GB, HOUR = 1e9, 1_000_000_000, 3600.0
NOTHING = Sizes()


def given_back(client):
    return client.send(calls.store()).given_back


def test_a_suspended_kernel_counts_until_it_is_resumed_or_killed(
    client, kernel, settings, eventually
):
    kernel_id = kernel.kernel_id
    assert given_back(client) == GivenBack()
    suspended = client.wait(client.send(calls.suspend(kernel_id)).operation_id)
    first, later = given_back(client), given_back(client)
    assert 0 < first.memory_byte_seconds < later.memory_byte_seconds
    resumed = client.wait(client.send(calls.resume(kernel_id)).operation_id)
    counted = given_back(client)
    bytes_and_seconds = suspended.sizes.raw_bytes * resumed.away_seconds
    assert counted.memory_byte_seconds == pytest.approx(bytes_and_seconds, rel=0.05)
    assert counted.memory_byte_seconds > later.memory_byte_seconds
    assert (suspended.away_seconds, counted.gpu_seconds) == (0, 0)
    eventually(lambda: GivenBackSums(settings.data).total([]) == counted)

    client.wait(client.send(calls.suspend(kernel_id)).operation_id)
    daemon = client.send(calls.handshake()).pid
    os.kill(daemon, signal.SIGKILL)
    eventually(lambda: place.start_time(daemon) is None)
    with Client.connect(settings) as other:
        after = given_back(other)
        assert after.memory_byte_seconds > counted.memory_byte_seconds
        other.send(calls.kill(kernel_id))
        assert given_back(other).memory_byte_seconds > after.memory_byte_seconds


@pytest.fixture
def record(monkeypatch, tmp_path):
    """Return a function that makes the record of a kernel which is in its state for an hour."""
    owner, here = this_owner(OwnerKind.SCRIPT), place.this_place(tmp_path)
    monkeypatch.setattr("time.time", lambda: NOW)

    def make(state, sizes=NOTHING, kernel_id="k"):
        spec = LaunchSpec(kernel_id, [], {}, "/", "/dev/null")
        return KernelRecord(spec, owner, here, state, since=NOW - HOUR, sizes=sizes)

    return make


def test_gpus_count_while_a_kernel_that_used_one_is_suspended_or_parked(record, tmp_path):
    sums = GivenBackSums(tmp_path)
    both = Sizes(raw_bytes=3 * GB, gpu_bytes=2 * GB)
    assert sums.end_period(record(KernelState.SUSPENDED, both)) == HOUR
    assert sums.total([]) == GivenBack(GB * HOUR, 2 * GB * HOUR, HOUR)
    assert sums.end_period(record(KernelState.PARKED, both)) == HOUR
    assert sums.total([]) == GivenBack(GB * HOUR, 2 * GB * HOUR, 2 * HOUR)
    # The size of a running kernel's last snapshot says nothing.
    assert sums.end_period(record(KernelState.RUNNING, both)) == 0
    now = [record(KernelState.SUSPENDED, Sizes(raw_bytes=GB)), record(KernelState.RUNNING, both)]
    assert sums.total(now) == GivenBack(2 * GB * HOUR, 2 * GB * HOUR, 2 * HOUR)


def test_two_daemons_of_this_host_add_to_the_same_sums(record, tmp_path):
    one, other = GivenBackSums(tmp_path), GivenBackSums(tmp_path)
    for sums, count in ((one, 1), (other, 2), (one, 3)):
        sums.end_period(record(KernelState.PARKED))
        sums.write()
        assert GivenBackSums(tmp_path).total([]).gpu_seconds == count * HOUR
    assert one.total([]).gpu_seconds == 3 * HOUR


def test_a_period_is_added_once(record, tmp_path):
    sums, parked = GivenBackSums(tmp_path), record(KernelState.PARKED)
    assert [sums.end_period(parked) for _ in range(2)] == [HOUR, 0]
    assert sums.total([parked]).gpu_seconds == HOUR


@pytest.mark.parametrize(
    ("leaves", "hours"), [("goes to another machine", 1), ("is forgotten", 2), ("is lost", 2)]
)
def test_the_period_of_a_kernel_that_ends_is_kept_and_another_machine_counts_what_it_takes_over(
    record, tmp_path, monkeypatch, leaves, hours
):
    async def main():
        here = place.this_place(tmp_path)
        machine = Machine(Settings(str(tmp_path)), here, local_chunks=local_chunks)
        records = Records(tmp_path / "state", here)
        kernels = Kernels(records, machine, Streams())
        parked = kernels.add(record(KernelState.PARKED))
        suspended = kernels.add(record(KernelState.SUSPENDED, Sizes(gpu_bytes=GB), kernel_id="s"))
        if leaves == "goes to another machine":
            monkeypatch.setattr(records, "moved", lambda: ["s"])
            await kernels.drop_moved()
        elif leaves == "is forgotten":
            kernels.forget(suspended)
        else:
            kernels.move(parked, KernelState.LOST)
        assert machine.given_back.total(one.record for one in kernels).gpu_seconds == hours * HOUR
        await kernels.close()
        machine.close()

    asyncio.run(main())


@pytest.mark.parametrize("garbage", [b"", b"[]", b"\xff", b'{"gpu_seconds": -1}'])
def test_a_file_that_makes_no_sense_is_replaced(record, tmp_path, garbage):
    sums = GivenBackSums(tmp_path)
    sums.end_period(record(KernelState.PARKED))
    sums.write()
    (path,) = (tmp_path / "given-back").glob("*.json")
    assert path.stat().st_mode & 0o777 == 0o600
    path.write_bytes(garbage)
    again = GivenBackSums(tmp_path)
    assert again.total([]) == GivenBack()
    again.end_period(record(KernelState.PARKED))
    again.write()
    assert GivenBackSums(tmp_path).total([]).gpu_seconds == HOUR
