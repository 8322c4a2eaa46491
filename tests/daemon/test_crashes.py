"""A daemon that is killed with -9: the next one finds everything as it is."""

import json
import os
import signal
import time
from pathlib import Path

import pytest

from jupyter_gpuckpt.client import Client, this_owner
from jupyter_gpuckpt.errors import KernelStateConflict
from jupyter_gpuckpt.host import processes
from jupyter_gpuckpt.wire import calls, place
from jupyter_gpuckpt.wire.manifest_records import SCRATCH
from jupyter_gpuckpt.wire.protocol import BranchRequest, OwnerKind
from jupyter_gpuckpt.wire.states import KernelState


@pytest.fixture
def crashed(client, settings, owner_of, spec, counts, eventually):
    """Return a kernel of a server that is gone, whose daemon was killed; `before` happens in between."""

    def crash(before=lambda kernel: None, after=lambda kernel: None):
        with owner_of(client) as owner:
            kernel = client.send(calls.launch(owner.owner_id, spec()))
            eventually(lambda: counts(kernel.kernel_id))
            before(kernel)
            pid = client.send(calls.handshake()).pid
        os.kill(pid, signal.SIGKILL)
        eventually(lambda: place.start_time(pid) is None)
        after(kernel)
        return kernel

    return crash


def test_a_running_kernel_is_adopted(client, crashed, counts, eventually):
    kernel = crashed()
    recovered = client.send(calls.kernel(kernel.kernel_id))
    assert (recovered.state, recovered.pid) == (KernelState.RUNNING, kernel.pid)
    before = counts(kernel.kernel_id)
    eventually(lambda: counts(kernel.kernel_id) > before)
    result = client.wait(client.send(calls.suspend(kernel.kernel_id)).operation_id)
    assert (
        client.wait(client.send(calls.resume(kernel.kernel_id)).operation_id).snapshot_id
        == result.snapshot_id
    )


def test_a_record_that_makes_no_sense_costs_its_kernel_only(client, settings, crashed):
    def spoil(kernel):
        kernels = settings.state / "kernels"
        record = json.loads((kernels / kernel.kernel_id / "record.json").read_bytes())
        record |= {"state": "suspended", "tree": None, "since": 1.0}  # the first to be recovered
        record["spec"] |= {"kernel_id": "other", "own_ports": [1 << 40]}
        (kernels / "other").mkdir()
        (kernels / "other" / "record.json").write_text(json.dumps(record))

    kernel = crashed(after=spoil)
    assert [one.kernel_id for one in client.send(calls.kernels())] == [kernel.kernel_id]
    assert "kernel other cannot be recovered" in settings.log_file.read_text()


def remove(path):
    """Remove the record of a kernel."""
    path.unlink()


def truncate(path):
    """Leave half of the record of a kernel."""
    path.write_bytes(path.read_bytes()[:100])


def exchange(path):
    """Put the record of another kernel in the place of a kernel's."""
    path.write_bytes(path.read_bytes().replace(path.parent.name.encode(), b"other"))


@pytest.mark.parametrize("spoil", [remove, truncate, exchange])
def test_a_kernel_whose_record_is_lost_is_adopted(
    client, settings, crashed, counts, eventually, spoil
):
    def lose(kernel):
        spoil(settings.state / "kernels" / kernel.kernel_id / "record.json")

    kernel = crashed(after=lose)
    found = client.send(calls.kernel(kernel.kernel_id))
    assert (found.state, found.pid) == (KernelState.RUNNING, kernel.pid)
    client.wait(client.send(calls.suspend(kernel.kernel_id)).operation_id)
    client.wait(client.send(calls.resume(kernel.kernel_id)).operation_id)
    before = counts(kernel.kernel_id)
    eventually(lambda: counts(kernel.kernel_id) > before)


def test_an_older_record_does_not_hide_a_kernel(client, settings, crashed):
    """A backup of the data directory was put back: there, the kernel is suspended."""
    older = []

    def before(kernel):
        path = settings.state / "kernels" / kernel.kernel_id / "record.json"
        client.wait(client.send(calls.suspend(kernel.kernel_id)).operation_id)
        older.extend([path, path.read_bytes()])
        client.wait(client.send(calls.resume(kernel.kernel_id)).operation_id)
        older.append(client.send(calls.kernel(kernel.kernel_id)).pid)

    kernel = crashed(before, lambda kernel: older[0].write_bytes(older[1]))
    found = client.send(calls.kernel(kernel.kernel_id))
    assert (found.state, found.pid) == (KernelState.RUNNING, older[2])


def test_a_kernel_that_no_record_names_is_not_started_twice(
    client, settings, owner_of, spec, crashed, eventually
):
    def lose(kernel):
        remove(settings.state / "kernels" / kernel.kernel_id / "record.json")
        remove(Path(f"/proc/{kernel.init_pid}/root{SCRATCH}/record"))

    saved = []
    kernel = crashed(
        lambda k: saved.append(client.wait(client.send(calls.save(k.kernel_id)).operation_id)), lose
    )
    assert client.send(calls.kernels()) == []
    assert f"process {kernel.init_pid} belongs to kernel" in settings.log_file.read_text()
    with owner_of(client) as owner:
        request = BranchRequest(owner.owner_id, saved[0].snapshot_id, kernel.kernel_id, [])
        client.send(calls.branch(request))
        with pytest.raises(KernelStateConflict, match=f"still runs as process {kernel.init_pid}"):
            client.send(calls.resume(kernel.kernel_id))
        client.send(calls.kill(kernel.kernel_id))
        with pytest.raises(KernelStateConflict, match=f"still runs as process {kernel.init_pid}"):
            client.send(calls.launch(owner.owner_id, spec(kernel_id=kernel.kernel_id)))
        os.kill(kernel.init_pid, signal.SIGKILL)
        eventually(lambda: place.start_time(kernel.init_pid) is None)
        client.send(calls.branch(request))
        client.wait(client.send(calls.resume(kernel.kernel_id)).operation_id)


def test_the_end_of_an_adopted_kernel_is_noticed(client, crashed, eventually):
    kernel = crashed()
    assert client.send(calls.kernel(kernel.kernel_id))
    os.kill(kernel.pid, signal.SIGKILL)
    eventually(lambda: client.send(calls.kernels()) == [])
    assert int(Path(kernel.exit_path).read_text()) == signal.SIGKILL


def test_a_kernel_that_ended_meanwhile_is_forgotten(client, crashed, eventually):
    def end(kernel):
        os.kill(kernel.pid, signal.SIGKILL)
        eventually(Path(kernel.exit_path).exists)

    crashed(after=end)
    assert client.send(calls.kernels()) == []


def test_a_kernel_that_vanished_meanwhile_is_lost(client, crashed, eventually):
    def vanish(kernel):
        os.kill(kernel.init_pid, signal.SIGKILL)
        eventually(lambda: place.start_time(kernel.init_pid) is None)

    kernel = crashed(after=vanish)
    lost = client.send(calls.kernel(kernel.kernel_id))
    assert lost.state is KernelState.LOST
    assert lost.error.code == "kernel_lost"


def test_a_lost_kernel_comes_back_from_its_last_snapshot(client, crashed, counts, eventually):
    def vanish(kernel):
        os.kill(kernel.init_pid, signal.SIGKILL)
        eventually(lambda: place.start_time(kernel.init_pid) is None)

    kernel = crashed(
        lambda k: client.wait(client.send(calls.save(k.kernel_id)).operation_id), vanish
    )
    assert client.send(calls.kernel(kernel.kernel_id)).state is KernelState.LOST
    client.wait(client.send(calls.resume(kernel.kernel_id)).operation_id)
    before = counts(kernel.kernel_id)
    eventually(lambda: counts(kernel.kernel_id) > before)


def test_a_suspended_kernel_stays_suspended(client, crashed, counts, eventually):
    kernel = crashed(lambda k: client.wait(client.send(calls.suspend(k.kernel_id)).operation_id))
    assert client.send(calls.kernel(kernel.kernel_id)).state is KernelState.SUSPENDED
    before = counts(kernel.kernel_id)
    client.wait(client.send(calls.resume(kernel.kernel_id)).operation_id)
    eventually(lambda: counts(kernel.kernel_id) > before)


# test_crashes_at_every_step.py has every step of both.
@pytest.mark.parametrize(
    ("verb", "after"),
    [
        ("save", 0.08),
        ("suspend", 0.12),
        *(
            pytest.param(verb, after, marks=pytest.mark.slow)
            for verb, after in (
                *(("save", 0.03), ("save", 0.12), ("save", 0.2)),
                *(("suspend", 0.03), ("suspend", 0.08), ("suspend", 0.2)),
            )
        ),
    ],
)
def test_a_daemon_killed_in_a_freeze_costs_nothing(
    client, crashed, counts, eventually, left_in_scratch, verb, after
):
    """The kernel runs on under the next daemon, or lies complete in its snapshot, and can be saved again."""

    def begin(kernel):
        client.send(getattr(calls, verb)(kernel.kernel_id))
        time.sleep(after)

    kernel = crashed(begin)
    found = client.send(calls.kernel(kernel.kernel_id))
    if found.state is KernelState.SUSPENDED:
        assert verb == "suspend"
        client.wait(client.send(calls.resume(kernel.kernel_id)).operation_id)
    else:
        assert (found.state, found.pid) == (KernelState.RUNNING, kernel.pid)
    pid = client.send(calls.kernel(kernel.kernel_id)).pid
    before = counts(kernel.kernel_id)
    eventually(lambda: counts(kernel.kernel_id) > before)
    tree = [processes.parent(pid), pid, *processes.descendants(pid)]
    assert not [other for other in tree if processes.state(other) in ("T", "t")]
    assert not any("CRIU" in area.path for area in processes.maps(pid))
    init = client.send(calls.kernel(kernel.kernel_id)).init_pid
    assert left_in_scratch(init) == set()
    eventually(lambda: processes.children(processes.parent(pid)) == [pid])  # no ghost
    client.wait(client.send(calls.suspend(kernel.kernel_id)).operation_id)
    client.wait(client.send(calls.resume(kernel.kernel_id)).operation_id)
    before = counts(kernel.kernel_id)
    eventually(lambda: counts(kernel.kernel_id) > before)


@pytest.mark.parametrize("kind", list(OwnerKind))
def test_owners_that_do_not_come_back(client, settings, spec, eventually, kind, monkeypatch):
    """Kernels of a script that died together with the daemon are killed, those of a server stay."""
    owner = this_owner(kind, root_dir="/tmp")
    with client.hold(owner, lambda event: None):
        kernel = client.send(calls.launch(owner.owner_id, spec()))
        os.kill(client.send(calls.handshake()).pid, signal.SIGKILL)
    with Client.connect(settings) as another:
        if kind is OwnerKind.SCRIPT:
            eventually(lambda: another.send(calls.kernels()) == [])
            assert "killing its 1 kernel" in settings.log_file.read_text()
        else:
            assert another.send(calls.kernel(kernel.kernel_id)).state is KernelState.RUNNING
