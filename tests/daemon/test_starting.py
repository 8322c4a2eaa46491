"""One daemon per place: found, started on demand, alone, and gone when nobody needs it."""

import asyncio
import os
import signal
import socket
import stat
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path

import httpx
import msgspec
import pytest

from jupyter_gpuckpt.client import AsyncClient, Client, programs, starting
from jupyter_gpuckpt.errors import DaemonSilent, DaemonUnavailable, ToolMissing
from jupyter_gpuckpt.wire import calls, place
from jupyter_gpuckpt.wire.protocol import PROTOCOL_VERSION, package_version
from tests.conftest import wait_for
from tests.live_files import stats_below

CONNECT = """
from jupyter_gpuckpt import client
from jupyter_gpuckpt.wire import calls
print(client.Client.connect().send(calls.handshake()).pid)
"""


def pid_of(settings, *, start=True):
    with Client.connect(settings, start=start) as client:
        return client.send(calls.handshake()).pid


def test_ten_clients_at_once_start_one_daemon(settings):
    clients = [
        subprocess.Popen([sys.executable, "-c", CONNECT], stdout=subprocess.PIPE, text=True)
        for _ in range(10)
    ]
    answers = {process.communicate(timeout=300)[0].strip() for process in clients}
    assert len(answers) == 1
    assert answers.pop().isdecimal()


def test_daemons_that_are_started_at_once_leave_one(settings, target, eventually):
    argv = [sys.executable, "-m", "jupyter_gpuckpt.daemon", "--settings"]
    text = msgspec.json.encode(settings).decode()
    daemons = [subprocess.Popen([*argv, text], stderr=subprocess.PIPE, text=True) for _ in range(5)]
    eventually(target.socket.exists)
    pid = eventually(lambda: pid_of(settings))
    losers = [process for process in daemons if process.pid != pid]
    assert len(losers) == 4
    assert [process.communicate(timeout=300)[1] for process in losers] == [""] * 4
    assert [process.returncode for process in losers] == [0] * 4
    winner = next(process for process in daemons if process.pid == pid)
    winner.terminate()
    winner.communicate(timeout=300)
    assert winner.returncode == 0


def test_the_socket_is_for_its_owner_alone(client, target):
    assert stat.S_IMODE(target.socket.stat().st_mode) == 0o600
    assert stat.S_IMODE(target.socket.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE(target.settings.data.stat().st_mode) == 0o700
    for path, status in stats_below(target.settings.data):
        assert not status.st_mode & 0o077, path


def test_the_socket_of_a_killed_daemon_is_in_nobodys_way(client, settings, target):
    first = client.send(calls.handshake()).pid
    os.kill(first, signal.SIGKILL)
    assert target.socket.exists()
    assert pid_of(settings) != first


def test_a_client_starts_the_daemon_again(client):
    first = client.send(calls.handshake()).pid
    os.kill(first, signal.SIGKILL)
    assert client.send(calls.kernels()) == []
    assert client.send(calls.handshake()).pid != first


@pytest.mark.parametrize("name", ["sync", "async"])
def test_a_request_that_a_killed_daemon_did_not_read_is_sent_again(client, kernel, target, name):
    """Clients can connect to a killed daemon until its last thread has ended. A stopped daemon stands for it here."""
    pid = client.send(calls.handshake()).pid
    os.kill(pid, signal.SIGSTOP)
    save = calls.save(kernel.kernel_id)
    before = _connections(target.socket)
    with Client(target) as waiting, ThreadPoolExecutor(1) as pool:
        if name == "sync":
            # Its first connection is only an attempt.
            connections, sent = 2, pool.submit(waiting.send, save)
        else:
            connections, sent = 1, pool.submit(asyncio.run, _sent(AsyncClient(target), save))
        wait_for(lambda: _connections(target.socket) == before + connections)
        os.kill(pid, signal.SIGKILL)
        operation = sent.result(timeout=300)
    assert client.wait(operation.operation_id).snapshot_id


async def _sent(client, call):
    async with client:
        return await client.send(call)


def _connections(path):
    """Return how many connections to this socket there are, accepted or not."""
    lines = Path("/proc/net/unix").read_text().splitlines()
    return sum(line.endswith(f" {path}") for line in lines)


def test_without_start_a_missing_daemon_is_an_error(settings):
    with pytest.raises(DaemonUnavailable, match="not running"):
        Client.connect(settings, start=False)


def test_the_daemon_outlives_who_started_it(settings):
    done = subprocess.run(
        [sys.executable, "-c", CONNECT], capture_output=True, text=True, check=True
    )
    assert pid_of(settings, start=False) == int(done.stdout)


def test_a_module_in_the_callers_directory_does_not_get_into_the_daemon(settings, short_dir):
    (short_dir / "tornado.py").write_text("raise SystemExit(7)")
    subprocess.run([sys.executable, "-c", CONNECT], check=True, cwd=short_dir, timeout=300)


def test_an_unusable_data_directory_is_named_with_the_way_out(settings):
    settings.data.parent.mkdir(exist_ok=True)
    settings.data.write_text("a file in the way")
    with pytest.raises(DaemonUnavailable, match="could not be started") as failure:
        Client.connect(settings)
    assert str(settings.data) in failure.value.message
    assert "JUPYTER_GPUCKPT_DATA_DIR" in failure.value.hint
    assert "Traceback" not in failure.value.details


def test_the_log_of_a_failed_start_is_shown(settings, target):
    target.socket.mkdir(parents=True)
    with pytest.raises(DaemonUnavailable) as failure:
        Client.connect(settings)
    assert target.socket.name in failure.value.details
    assert str(settings.log_file) in failure.value.hint


def test_a_daemon_that_nobody_needs_leaves(settings, target, eventually):
    # Long enough for a client on a busy machine to ask for its number.
    with Client.connect(msgspec.structs.replace(settings, idle_exit_seconds=3.0)) as client:
        pid = client.send(calls.handshake()).pid
        eventually(lambda: place.start_time(pid) is None)
    assert not target.socket.exists()


def test_a_daemon_answers_before_it_leaves(settings, criu, tmp_path):
    """On a busy machine the first answer, for which the engine is tried, takes longer than the daemon waits for requests."""
    slow = tmp_path / "criu"
    slow.write_text(f'#!/bin/sh\nsleep 0.5\nexec "{criu}" "$@"\n')
    slow.chmod(0o755)
    settings = msgspec.structs.replace(settings, criu=str(slow), idle_exit_seconds=0.1)
    with Client.connect(settings):
        assert settings.log_file.read_text().count("serves place") == 1


def test_a_daemon_waits_for_its_first_request(settings, target, eventually):
    """The client that started it may be slower than the daemon's patience."""
    settings = msgspec.structs.replace(settings, idle_exit_seconds=0.1)
    text = msgspec.json.encode(settings).decode()
    subprocess.run([*programs.command("daemon"), "--detach", "--settings", text], check=True)
    assert "leaving" not in settings.log_file.read_text()
    time.sleep(0.5)  # longer than the idle exit; a daemon that left would have removed its socket
    with Client.connect(settings, start=False) as client:
        pid = client.send(calls.handshake()).pid
    eventually(lambda: place.start_time(pid) is None)


def test_a_client_that_hangs_up_in_a_request_does_not_keep_the_daemon(settings, target, eventually):
    """It leaves while the daemon reads an archive from it."""
    settings = msgspec.structs.replace(settings, idle_exit_seconds=0.1)
    with Client.connect(settings) as client:
        pid = client.send(calls.handshake()).pid
        with socket.socket(socket.AF_UNIX) as connected:
            connected.connect(str(target.socket))
            head = "POST /snapshots/import HTTP/1.1\r\nHost: gpuckptd\r\nContent-Length: 100000000\r\n\r\n"
            connected.sendall(head.encode() + bytes(1 << 20))
        eventually(lambda: place.start_time(pid) is None)


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_daemon_without_kernels_leaves_on_a_signal(client, eventually, signum):
    pid = client.send(calls.handshake()).pid
    os.kill(pid, signum)
    eventually(lambda: place.start_time(pid) is None)


@pytest.mark.parametrize(
    "change", [{"protocol": PROTOCOL_VERSION + 1}, {"version": "0.0.0.post9"}, {"place": "0" * 16}]
)
def test_another_protocol_version_or_place_is_refused(client, target, change):
    other = msgspec.structs.replace(client.send(calls.handshake()), **change)
    with pytest.raises(DaemonUnavailable, match=r"version|place") as refusal:
        starting.accepted(other, target.place)
    assert str(client.send(calls.handshake()).pid) in refusal.value.message
    assert refusal.value.hint


def test_a_handshake_says_who_answers(client, target):
    handshake = client.send(calls.handshake())
    assert (handshake.protocol, handshake.version) == (PROTOCOL_VERSION, package_version())
    assert handshake.place == target.place.key
    assert handshake.engine_available


def test_a_daemon_that_hangs_up_is_unavailable(settings, target):
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(target.socket))
    listener.listen()
    listener.close()  # the socket file stays: as after a kill
    assert pid_of(settings)


@pytest.mark.parametrize("backlog", [128, 1])
def test_a_socket_that_accepts_and_never_replies_is_a_silent_daemon(settings, target, backlog):
    with socket.socket(socket.AF_UNIX) as listener, ExitStack() as waiting:
        listener.bind(str(target.socket))
        listener.listen(backlog)
        for _ in range(3 - backlog):  # with a short queue no further connection is accepted
            client = waiting.enter_context(socket.socket(socket.AF_UNIX))
            client.setblocking(False)
            with suppress(BlockingIOError):
                client.connect(str(target.socket))
        told = []
        with pytest.raises(DaemonSilent, match="does not answer"):
            Client.connect(
                settings, patience_seconds=calls.ALIVE_SECONDS + 0.2, on_silence=told.append
            )
        assert len(told) == 1


def test_where_the_engine_cannot_work_the_daemon_runs_and_says_so(settings, owner_of, spec):
    with Client.connect(msgspec.structs.replace(settings, criu="/nonexistent/criu")) as client:
        handshake = client.send(calls.handshake())
        assert not handshake.engine_available
        assert handshake.reason
        assert not client.send(calls.host()).engine_available
        with owner_of(client) as owner, pytest.raises(ToolMissing) as refusal:
            client.send(calls.launch(owner.owner_id, spec()))
        assert refusal.value.hint
        assert client.send(calls.kernels()) == []


@pytest.mark.skipif(os.getuid() != 0, reason="becoming an ordinary user needs root")
def test_an_ordinary_user_gets_a_daemon_that_works_or_says_what_is_missing(short_dir):
    uid = 12345
    os.chown(short_dir, uid, uid)
    env = {
        "PATH": os.environ["PATH"],
        "HOME": "/nonexistent",
        "JUPYTER_GPUCKPT_RUNTIME_DIR": str(short_dir / "run"),
        "JUPYTER_GPUCKPT_DATA_DIR": str(short_dir / "data"),
        "JUPYTER_GPUCKPT_IDLE_EXIT": "1",
    }
    code = """
from jupyter_gpuckpt.wire import calls
from jupyter_gpuckpt.client import Client
with Client.connect() as client:
    shake = client.send(calls.handshake())
    print(shake.engine_available, shake.hint)
"""

    def run(text):
        return subprocess.run(
            [sys.executable, "-c", text],
            user=uid,
            group=uid,
            extra_groups=[],
            env=env,
            cwd="/",
            capture_output=True,
            text=True,
            check=False,
        )

    try:
        readable = run("import jupyter_gpuckpt.client").returncode == 0
    except PermissionError:
        readable = False
    if not readable:
        pytest.skip("an ordinary user cannot read this installation")
    done = run(code)
    assert done.returncode == 0, done.stderr
    available, _, hint = done.stdout.partition(" ")
    assert available == "True" or hint.strip()


def test_curl_can_speak_to_it(client, target):
    transport = httpx.HTTPTransport(uds=str(target.socket))
    with httpx.Client(transport=transport, base_url="http://localhost", timeout=120) as http:
        assert http.get("/handshake").json()["pid"] == client.send(calls.handshake()).pid


def test_a_client_in_another_pid_namespace_gets_its_own_daemon(client):
    """It could not see the processes of ours, nor they its."""
    code = """
from jupyter_gpuckpt.wire import calls
from jupyter_gpuckpt.client import Client
shake = Client.connect().send(calls.handshake())
print(shake.pid, shake.place)
"""
    command = ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode and "Operation not permitted" in done.stderr:
        pytest.skip("no namespace can be made here")
    assert done.returncode == 0, done.stderr
    pid, place = done.stdout.split()
    ours = client.send(calls.handshake())
    assert place != ours.place
    assert int(pid) < 100, "a pid of its own namespace"
    assert client.send(calls.handshake()).pid == ours.pid
