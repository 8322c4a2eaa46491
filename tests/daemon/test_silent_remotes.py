"""A remote that takes connections and never answers holds up nothing but itself."""

from __future__ import annotations

import os
import secrets
import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path

import psutil
import pytest

from jupyter_gpuckpt.cli import app
from jupyter_gpuckpt.client import Client
from jupyter_gpuckpt.errors import GpuCkptError
from jupyter_gpuckpt.remote.remote_list import Remotes
from jupyter_gpuckpt.wire import calls, place
from jupyter_gpuckpt.wire.protocol import SaveRequest
from jupyter_gpuckpt.wire.remote_records import Capabilities, Remote, RemoteVerb
from tests.daemon.conftest import LONG
from tests.remote import interfering
from tests.remote.installations import ask, some_chunks

pytestmark = pytest.mark.usefixtures("credentials")

#: More than Python's own executor has threads.
QUESTIONS = 12 + (os.cpu_count() or 1)


class Silent:
    """A remote that answered once, and never does again."""

    def __init__(self, data_dir: Path, key: Path) -> None:
        self._data_dir, self._key = data_dir, key
        self._stack = ExitStack()

    def add(self) -> None:
        """Add it."""
        self._key.write_text(secrets.token_hex(32))
        self._key.chmod(0o600)
        where = {"endpoint": self._stack.enter_context(interfering.silent()), "region": "us-east-1"}
        able = Capabilities(True, True, True, True, True, True)
        Remotes(self._data_dir).add(
            Remote(
                "silent", "s3://bucket/prefix", where, capabilities=able, key_file=str(self._key)
            )
        )

    def end(self) -> None:
        """Let go of what waits for it."""
        self._stack.close()


@pytest.fixture
def silent(settings, short_dir):
    """Yield a remote that is silent, to be added."""
    remote = Silent(settings.data, short_dir / "silent.key")
    yield remote
    remote.end()


@pytest.fixture
def saved(client, owner, spec):
    """Return a function that saves a new kernel; its snapshot."""

    def save():
        launched = client.send(calls.launch(owner.owner_id, spec()))
        operation = client.send(calls.save(launched.kernel_id, SaveRequest()))
        return client.wait(operation.operation_id).snapshot_id

    return save


def test_a_silent_remote_holds_up_nothing_else(
    add, snapshots, silent, client, saved, settings, uploaded, eventually, capsys
):
    snapshots(one=some_chunks(21, 2))
    silent.add()

    def question(_):
        with Client.connect(settings) as asker, pytest.raises(GpuCkptError):
            asker.send(calls.remote_sessions("silent"))

    with ThreadPoolExecutor(QUESTIONS) as pool:
        waiting = [pool.submit(question, number) for number in range(QUESTIONS)]
        try:
            eventually(lambda: _says(client, "uploading"), LONG)
            # While all these wait and an upload to the silent one hangs.
            add()
            uploaded(client, "one")
            [session] = client.send(calls.remote_sessions("offsite")).sessions
            assert [one.snapshot_id for one in session.snapshots] == ["one"]
            uploaded(client, saved())
            eventually(lambda: _says(client, "trouble"), LONG)
            assert not all(one.done() for one in waiting)
        finally:
            silent.end()
        for one in waiting:
            one.result(LONG)
    assert app.main(["remote", "status"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any("Remote silent " in line for line in lines)


@pytest.mark.slow
def test_a_silent_remote_is_said_to_be_and_another_one_takes_its_place_while_an_upload_hangs(
    add, snapshots, silent, client, eventually, uploaded, reader, settings
):
    chunks = some_chunks(22, 2)
    snapshots(one=chunks)
    silent.add()
    eventually(lambda: _says(client, "trouble"), LONG)
    [view] = client.send(calls.uploads())
    assert view.trouble.message == "Remote silent does not respond."
    assert (view.uploading, view.waiting) == ("one", 1)
    # Waits for the end of what hangs.
    ask(RemoteVerb.REMOVE, settings.data, "silent")
    add("silent")
    uploaded(client, "one", remote="silent")
    assert reader("silent").fetch_all() == {"one": chunks}
    [view] = client.send(calls.uploads())
    assert (view.trouble, view.failed) == (None, [])


@pytest.mark.slow
def test_a_daemon_leaves_although_an_upload_and_a_question_hang(
    snapshots, silent, client, settings, eventually
):
    snapshots(one=some_chunks(23, 1))
    silent.add()
    eventually(lambda: _says(client, "uploading"), LONG)
    pid = client.send(calls.handshake()).pid

    def question():
        with Client.connect(settings) as asker, suppress(GpuCkptError):
            asker.send(calls.remote_sessions("silent"))

    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(question)
        eventually(lambda: _asks(pid), LONG)
        os.kill(pid, signal.SIGTERM)
        eventually(lambda: place.start_time(pid) is None, LONG)
        silent.end()
        waiting.result(LONG)
    assert client.send(calls.handshake()).pid != pid


def _asks(pid):
    """Whether a process itself has a connection to another one of this machine by TCP."""
    return bool(psutil.Process(pid).net_connections("tcp"))


def _says(client, what):
    """Whether the daemon says this of the silent remote by now."""
    return any(getattr(one, what) for one in client.send(calls.uploads()) if one.remote == "silent")
