"""Who dies when: scripts take their kernels with them, servers leave them to the next server."""

import os
import signal
import socket
import subprocess
import sys
import time

import msgspec
import pytest

from jupyter_gpuckpt.client import Client, this_owner
from jupyter_gpuckpt.daemon.kernels.owners import GRACE_SECONDS
from jupyter_gpuckpt.errors import ConfigurationError, GpuCkptError
from jupyter_gpuckpt.wire import calls, place
from jupyter_gpuckpt.wire.protocol import OwnerKind, SaveRequest
from jupyter_gpuckpt.wire.states import KernelState

#: A client in a process of its own, so that it can die: launches a kernel, prints its pid, waits.
OWNER = """
import sys, time
from jupyter_gpuckpt.wire import calls
from jupyter_gpuckpt.client import Client, this_owner
from jupyter_gpuckpt.wire.manifest_records import LaunchSpec
from jupyter_gpuckpt.wire.protocol import OwnerKind
kind, root, hub, log, suspend = sys.argv[1:]
client = Client.connect()
owner = this_owner(OwnerKind(kind), root_dir=root, hub_server=hub)
client.hold(owner, lambda event: None)
jupyter = {"root": root, "sessions": [{"path": "a.ipynb"}]}
spec = LaunchSpec("k", ["sleep", "1000"], {}, "/tmp", log, jupyter=jupyter)
kernel = client.send(calls.launch(owner.owner_id, spec))
if suspend:
    client.wait(client.send(calls.suspend("k")).operation_id)
print(kernel.init_pid, flush=True)
time.sleep(1000)
"""


@pytest.fixture
def daemon_env(emptied_daemon_env):
    return emptied_daemon_env


@pytest.fixture
def owner_process(client, short_dir):
    """Start a client with a kernel; return its process and the pid of the kernel's init."""
    started = []

    def start(kind, root="/tmp/a", hub="", suspend=False):
        argv = [sys.executable, "-c", OWNER, kind, root, hub, str(short_dir / "log")]
        process = subprocess.Popen(
            [*argv, "yes" if suspend else ""], stdout=subprocess.PIPE, text=True
        )
        started.append(process)
        return process, int(process.stdout.readline())

    yield start
    for process in started:
        process.kill()
        process.communicate()


def die(process):
    process.kill()
    process.wait()


def test_a_script_takes_its_kernel_with_it(client, owner_process, eventually):
    process, init = owner_process("script")
    die(process)
    eventually(lambda: place.start_time(init) is None)
    eventually(lambda: client.send(calls.kernels()) == [])


def test_a_script_may_come_back_at_once(client, owner_of, spec):
    script = this_owner(OwnerKind.SCRIPT)
    for _ in range(20):
        with client.hold(script, lambda event: None):
            kernel = client.send(calls.launch(script.owner_id, spec()))
            left = time.monotonic()
        with client.hold(script, lambda event: None):
            if time.monotonic() - left > GRACE_SECONDS:
                continue  # it was not at once
            time.sleep(2.5)
            assert client.send(calls.kernel(kernel.kernel_id)).state is KernelState.RUNNING
            return
    pytest.fail("the machine is too slow")


def test_a_server_leaves_its_kernel(client, owner_process):
    process, init = owner_process("server")
    die(process)
    time.sleep(2.5)
    assert place.start_time(init)
    assert client.send(calls.kernel("k")).state is KernelState.RUNNING


@pytest.mark.parametrize("suspend", [False, True])
def test_the_next_server_claims_it(client, owner_process, owner_of, suspend):
    process, _ = owner_process("server", suspend=suspend)
    die(process)
    with owner_of(client, root_dir="/tmp/a") as heir:
        claimed = client.send(calls.claim(heir.owner_id))
        assert [item.kernel.kernel_id for item in claimed] == ["k"]
        assert claimed[0].jupyter["sessions"] == [{"path": "a.ipynb"}]
        assert claimed[0].cwd == "/tmp"
        expected = KernelState.SUSPENDED if suspend else KernelState.RUNNING
        assert claimed[0].kernel.state is expected
        assert client.send(calls.kernel("k")).owner_id == heir.owner_id
        assert client.send(calls.claim(heir.owner_id)) == []


def test_who_claims_it_in_the_middle_of_a_suspend_hears_how_it_was_then(
    client, owner_process, owner_of
):
    process, _ = owner_process("server")
    die(process)
    then = {"root": "/tmp/a", "sessions": [], "agent": True}
    operation = client.send(calls.suspend("k", SaveRequest(jupyter=then)))
    with owner_of(client, root_dir="/tmp/a") as heir:
        [claimed] = client.send(calls.claim(heir.owner_id))
        assert claimed.jupyter == then
        client.wait(operation.operation_id)


@pytest.mark.parametrize(
    "fields", [{"root_dir": "/tmp/b"}, {"root_dir": "/tmp/a", "hub_server": "other"}]
)
def test_another_server_does_not_get_it(client, owner_process, owner_of, fields):
    process, _ = owner_process("server")
    die(process)
    with owner_of(client, **fields) as other:
        assert client.send(calls.claim(other.owner_id)) == []


def test_a_living_server_keeps_it(client, owner_process, owner_of):
    owner_process("server")
    with owner_of(client, root_dir="/tmp/a") as other:
        assert client.send(calls.claim(other.owner_id)) == []


def test_a_server_that_lets_go_is_followed_before_its_process_ends(client, owner_process, owner_of):
    owner_process("server")
    [kernel] = client.send(calls.kernels())
    with owner_of(client, root_dir="/tmp/a") as heir, owner_of(client, root_dir="/tmp/b") as other:
        assert client.send(calls.claim(heir.owner_id)) == []
        assert [left.kernel_id for left in client.send(calls.claimable(heir.owner_id))] == ["k"]
        assert client.send(calls.claimable(other.owner_id)) == []
        client.send(calls.leave(kernel.owner_id))
        assert [item.kernel.kernel_id for item in client.send(calls.claim(heir.owner_id))] == ["k"]
        assert client.send(calls.claimable(heir.owner_id)) == []


def test_scripts_claim_nothing(client, owner_of):
    with owner_of(client, OwnerKind.SCRIPT) as script, pytest.raises(ConfigurationError):
        client.send(calls.claim(script.owner_id))


def test_a_daemon_stays_while_somebody_is_connected(settings, owner_of):
    with (
        Client.connect(msgspec.structs.replace(settings, idle_exit_seconds=2.0)) as client,
        owner_of(client),
    ):
        pid = client.send(calls.handshake()).pid
        time.sleep(5)  # longer than that, which is as long as a first connection may take
        assert place.start_time(pid)


def listens(path):
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(str(path)) == 0


def test_a_kernel_can_be_launched_right_after_a_crash_of_the_daemon(
    client, target, owner, spec, eventually
):
    os.kill(client.send(calls.handshake()).pid, signal.SIGKILL)
    # Not when its main thread is gone: the others close the descriptors, its connections among them, a moment later.
    eventually(lambda: not listens(target.socket))
    # The request starts the next daemon, which the owner has yet to find.
    assert client.send(calls.launch(owner.owner_id, spec())).owner_id == owner.owner_id


def test_a_connection_is_opened_again_and_says_what_is_there(client, kernel, events, eventually):
    first = client.send(calls.handshake()).pid
    count = len(events)
    os.kill(first, signal.SIGKILL)
    # The holding thread notices the loss and starts the next daemon, which recovers the kernel.
    eventually(lambda: len(events) > count)
    again = events[count].kernel
    assert (again.kernel_id, again.state) == (kernel.kernel_id, KernelState.RUNNING)
    assert client.send(calls.handshake()).pid != first


def test_a_loss_is_told_at_once(client, spec, eventually):
    told, owner = [], this_owner(OwnerKind.SERVER)

    def is_loss(one):
        return isinstance(one, GpuCkptError)

    with client.hold(owner, told.append, told.append):
        client.send(calls.launch(owner.owner_id, spec()))
        eventually(lambda: told)
        first = told[0].position.incarnation
        os.kill(client.send(calls.handshake()).pid, signal.SIGKILL)
        eventually(lambda: any(map(is_loss, told)))
        eventually(lambda: not is_loss(told[-1]) and told[-1].position.incarnation > first)
    # Before the next daemon says anything.
    place = next(number for number, one in enumerate(told) if is_loss(one))
    assert told[place].retryable
    assert {one.position.incarnation for one in told[:place]} == {first}
