"""Kernels under the daemon: launched, interrupted, killed, ended by themselves; and what clients are refused."""

import os
import signal
from pathlib import Path

import httpx
import pytest

from jupyter_gpuckpt.client import starting
from jupyter_gpuckpt.errors import (
    ConfigurationError,
    KernelLost,
    KernelNotFound,
    KernelStateConflict,
    OperationNotFound,
    SnapshotNotFound,
)
from jupyter_gpuckpt.wire import calls, place
from jupyter_gpuckpt.wire.states import KernelState


@pytest.fixture
def daemon_env(emptied_daemon_env):
    return emptied_daemon_env


@pytest.fixture
def http(client, settings):
    socket = starting.target(settings, start=False).socket
    with httpx.Client(
        transport=httpx.HTTPTransport(uds=str(socket)), base_url="http://x", timeout=120
    ) as plain:
        yield plain


def gone(client, kernel_id):
    return kernel_id not in [kernel.kernel_id for kernel in client.send(calls.kernels())]


def test_a_kernel_runs_and_is_listed(client, kernel, owner, counts, eventually):
    shown = client.send(calls.kernel(kernel.kernel_id))
    assert (shown.state, shown.owner_id) == (KernelState.RUNNING, owner.owner_id)
    assert shown.memory_bytes > 0
    assert not Path(shown.exit_path).exists()
    assert place.start_time(shown.pid)
    assert [k.kernel_id for k in client.send(calls.kernels())] == [kernel.kernel_id]
    before = counts(kernel.kernel_id)
    eventually(lambda: counts(kernel.kernel_id) > before)


def test_its_owner_hears_of_it(kernel, events, eventually):
    def states():
        return [event.kernel.state for event in list(events) if event.kernel]

    eventually(lambda: len(states()) >= 2)
    assert states()[:2] == [KernelState.STARTING, KernelState.RUNNING]


def test_a_killed_kernel_is_gone_and_its_exit_file_says_so(client, kernel, events, eventually):
    client.send(calls.kill(kernel.kernel_id))
    assert place.start_time(kernel.init_pid) is None
    assert place.start_time(kernel.pid) is None
    assert os.WTERMSIG(int(Path(kernel.exit_path).read_text())) == signal.SIGKILL
    with pytest.raises(KernelNotFound):
        client.send(calls.kernel(kernel.kernel_id))
    eventually(lambda: events[-1].gone == kernel.kernel_id)


def test_a_kernel_that_ends_by_itself_leaves_its_status(
    client, owner, spec, events, short_dir, eventually
):
    go = short_dir / "go"
    until_told = f"until [ -e {go} ]; do sleep 0.05; done; exit 7"
    kernel = client.send(calls.launch(owner.owner_id, spec(["/bin/sh", "-c", until_told])))
    go.touch()
    eventually(lambda: gone(client, kernel.kernel_id))
    assert os.waitstatus_to_exitcode(int(Path(kernel.exit_path).read_text())) == 7
    eventually(lambda: events[-1].gone == kernel.kernel_id)
    assert place.start_time(kernel.init_pid) is None


def test_a_kernel_that_ends_while_it_is_suspended_has_ended_by_itself(client, kernel, eventually):
    os.kill(kernel.init_pid, signal.SIGSTOP)
    os.kill(kernel.pid, signal.SIGKILL)
    eventually(lambda: place.start_time(kernel.pid) is None)
    operation = client.send(calls.suspend(kernel.kernel_id))
    following = client.follow(operation.operation_id)
    eventually(lambda: next(following).progress.stage)
    # init writes the exit status only now.
    os.kill(kernel.init_pid, signal.SIGCONT)
    *_, seen = following
    assert seen.error.code == KernelLost.code
    assert "ended while it was being saved" in seen.error.message
    eventually(lambda: gone(client, kernel.kernel_id))
    assert int(Path(kernel.exit_path).read_text()) == signal.SIGKILL


def test_a_kernel_whose_init_is_killed_is_lost(client, kernel, events, eventually):
    os.kill(kernel.init_pid, signal.SIGKILL)
    lost = eventually(
        lambda: (k := client.send(calls.kernel(kernel.kernel_id))).state is KernelState.LOST and k
    )
    assert lost.error.code == KernelLost.code
    assert (lost.pid, lost.init_pid) == (0, 0)
    eventually(lambda: events[-1].kernel and events[-1].kernel.state is KernelState.LOST)
    assert not Path(kernel.exit_path).exists()


def test_a_lost_kernel_can_be_started_anew(client, owner, kernel, spec, eventually):
    os.kill(kernel.init_pid, signal.SIGKILL)
    eventually(lambda: client.send(calls.kernel(kernel.kernel_id)).state is KernelState.LOST)
    again = client.send(calls.launch(owner.owner_id, spec(kernel_id=kernel.kernel_id)))
    assert again.state is KernelState.RUNNING
    assert again.exit_path != kernel.exit_path


def test_a_lost_kernel_without_a_snapshot_cannot_be_resumed(client, kernel, eventually):
    os.kill(kernel.init_pid, signal.SIGKILL)
    eventually(lambda: client.send(calls.kernel(kernel.kernel_id)).state is KernelState.LOST)
    with pytest.raises(SnapshotNotFound):
        client.wait(client.send(calls.resume(kernel.kernel_id)).operation_id)
    assert client.send(calls.kernel(kernel.kernel_id)).state is KernelState.LOST


def test_an_interrupt_reaches_the_kernel(client, kernel, short_dir, eventually):
    client.send(calls.signal(kernel.kernel_id, signal.SIGINT))
    eventually((short_dir / f"{kernel.kernel_id}.interrupted").exists)
    assert client.send(calls.kernel(kernel.kernel_id)).state is KernelState.RUNNING


def test_signals_that_do_not_exist_are_refused(client, kernel):
    with pytest.raises(ConfigurationError):
        client.send(calls.signal(kernel.kernel_id, 4711))


def test_a_stop_signal_is_ignored_while_a_kernel_runs(client, kernel, counts, settings, eventually):
    pid = client.send(calls.handshake()).pid
    for signum in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        os.kill(pid, signum)
    eventually(lambda: settings.log_file.read_text().count("is ignored") == 3)
    before = counts(kernel.kernel_id)
    eventually(lambda: counts(kernel.kernel_id) > before)
    assert client.send(calls.handshake()).pid == pid
    client.send(calls.kill(kernel.kernel_id))
    os.kill(pid, signal.SIGTERM)
    eventually(lambda: place.start_time(pid) is None)


def test_an_id_is_taken_once(client, kernel, owner, spec):
    with pytest.raises(KernelStateConflict):
        client.send(calls.launch(owner.owner_id, spec(kernel_id=kernel.kernel_id)))


def test_a_kernel_needs_a_connected_owner(client, spec):
    with pytest.raises(ConfigurationError, match="not connected"):
        client.send(calls.launch("nobody", spec()))


def test_a_program_that_does_not_exist_leaves_no_kernel(client, owner, spec, eventually):
    request = spec(["/nonexistent/program"])
    try:
        kernel = client.send(calls.launch(owner.owner_id, request))
    except KernelLost:
        pass
    else:  # it was there for a moment
        eventually(lambda: gone(client, kernel.kernel_id))
    assert gone(client, request.kernel_id)


def test_what_is_not_there_is_not_found(client):
    for ask in (calls.kernel, calls.kill, calls.save, calls.suspend, calls.resume):
        with pytest.raises(KernelNotFound):
            client.send(ask("unknown"))
    for ask in (calls.operation, calls.cancel):
        with pytest.raises(OperationNotFound):
            client.send(ask("unknown"))
    with pytest.raises(OperationNotFound):
        list(client.follow("unknown"))
    with pytest.raises(OperationNotFound):
        client.wait("unknown")
    for ask in (calls.manifest_summary, calls.delete_snapshot):
        with pytest.raises(SnapshotNotFound):
            client.send(ask("unknown"))


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/kernels/unknown", 404, "kernel_not_found"),
        ("GET", "/operations/unknown", 404, "operation_not_found"),
        ("GET", "/snapshots/unknown", 404, "snapshot_not_found"),
        ("GET", "/unknown", 404, "error"),
        ("PUT", "/kernels", 405, "error"),
    ],
)
def test_a_refusal_has_a_status_and_a_code(http, method, path, status, code):
    answer = http.request(method, path)
    assert answer.status_code == status
    assert answer.json()["code"] == code


@pytest.mark.parametrize(
    "body", ["", "nonsense", "{}", '{"owner_id": 1}', '{"owner_id": "x", "spec": {}}', "[]"]
)
def test_a_wrong_body_is_refused(http, body):
    answer = http.post("/kernels", content=body)
    assert answer.status_code == 400
    assert answer.json()["code"] == "configuration"


def test_an_unknown_field_is_refused(http, kernel):
    answer = http.post(f"/kernels/{kernel.kernel_id}/resume", content='{"snapshot": "x"}')
    assert answer.status_code == 400


def test_a_new_manager_description_replaces_the_old_one(client, kernel, settings):
    assert (
        client.send(calls.set_jupyter(kernel.kernel_id, "new.ipynb", {"sessions": []})).name
        == "new.ipynb"
    )
    assert client.send(calls.set_jupyter(kernel.kernel_id, "", None)).name == "new.ipynb"
    record = settings.state / "kernels" / kernel.kernel_id / "record.json"
    assert '"sessions":[]' in record.read_text()
