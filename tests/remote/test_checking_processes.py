"""A fetch whose chunks are checked by several processes: the same bytes, the same errors, and nothing of them is left."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import textwrap
import threading
from concurrent.futures import wait
from itertools import count
from pathlib import Path
from unittest.mock import Mock

import pytest

from jupyter_gpuckpt.errors import FormatTooNew, OperationCancelled, RemoteObjectInvalid, StoreFull
from jupyter_gpuckpt.host import processes
from jupyter_gpuckpt.images import worker_processes
from jupyter_gpuckpt.remote import check_client
from jupyter_gpuckpt.remote.check_client import CheckingProcesses
from jupyter_gpuckpt.remote.checking import CheckingThreads
from jupyter_gpuckpt.remote.fetch import _READERS as READERS
from jupyter_gpuckpt.remote.fetch import fetch
from jupyter_gpuckpt.remote.sealing import HEADER_BYTES
from jupyter_gpuckpt.store.codecs import RAW, digest_of
from jupyter_gpuckpt.store.writer import PackWriter, Record
from tests.conftest import wait_for
from tests.remote.conftest import memory_bucket
from tests.remote.stores import FACTS, Machine, chunks
from tests.unit.test_store_local import manifest
from tests.worker_processes import workers, working

__all__ = ["workers"]

pytestmark = pytest.mark.usefixtures("workers")

WORKERS = 3
CONTENT = chunks(1, 120)


class Ready(CheckingProcesses):
    """Processes that are all ready when the fetch begins."""

    def __enter__(self):
        super().__enter__()
        wait_for(lambda: len(self._workers) == WORKERS)
        return self


@pytest.fixture
def both(tmp_path):
    """Yield a machine that has uploaded the snapshot s1, and one that has not fetched it yet."""
    there = memory_bucket()
    a, b = Machine(there, tmp_path / "a"), Machine(there, tmp_path / "b")
    a.save("s1", *CONTENT)
    a.upload("s1")
    yield a, b
    a.close()
    b.close()


@pytest.fixture
def checked(monkeypatch):
    """Return the numbers of runs that processes and that threads of this process have checked."""
    counts = {"processes": 0, "threads": 0}

    def counted(owner, name, what):
        work = getattr(owner, name)

        def wrapper(*arguments):
            done = work(*arguments)
            counts[what] += 1
            return done

        monkeypatch.setattr(owner, name, wrapper)

    counted(check_client._Worker, "check", "processes")
    counted(CheckingThreads, "checked", "threads")
    return counts


def fetched(machine, checkers=lambda stored_bytes: Ready(WORKERS)):
    [one] = machine.sessions.get(FACTS.session_id).listed
    fetch(machine.bucket, machine.seal, one, machine.store, checkers=checkers)
    store = machine.store
    return [store.load(chunk.digest) for chunk in store.manifest("s1").streams[0].chunks]


def test_processes_check_everything(both, checked):
    assert fetched(both[1]) == CONTENT
    assert checked["processes"] > WORKERS
    assert checked["threads"] == 0


def test_a_fetch_does_not_wait_for_them(both, checked, monkeypatch):
    monkeypatch.setattr(CheckingProcesses, "_start", lambda self: None)
    assert fetched(both[1], lambda stored_bytes: CheckingProcesses(WORKERS)) == CONTENT
    assert checked["processes"] == 0


def test_an_altered_pack_is_refused_and_named(both):
    a, b = both
    name = a.bucket.list("packs")[0].name
    data = a.bucket.get(name).data
    a.bucket.overwrite(name, data[:5000] + b"x" + data[5001:])
    with pytest.raises(RemoteObjectInvalid, match=name):
        fetched(b)
    assert b.store.snapshots() == []
    a.bucket.overwrite(name, data)
    assert fetched(b) == CONTENT


@pytest.mark.parametrize("codec", [0, 77])
def test_a_chunk_that_is_not_what_its_digest_says_is_refused(tmp_path, codec, monkeypatch):
    """Whoever has the key can put it there, or a newer version can have written it."""
    there = memory_bucket()
    a, b = Machine(there, tmp_path / "a"), Machine(there, tmp_path / "b")
    digest = digest_of(b"what is meant")
    with a.store.writer() as writer:
        writer.append_all([Record(digest, b"something else", 14, codec)])
    a.store.publish(manifest("s1", b"what is meant"))
    monkeypatch.setattr("jupyter_gpuckpt.remote.upload.digest_of_stored", lambda *_: digest)
    a.upload("s1")
    with pytest.raises(FormatTooNew if codec else RemoteObjectInvalid, match=digest.hex()[:16]):
        fetched(b)
    a.close()
    b.close()


@pytest.mark.parametrize("count", [1, WORKERS])
def test_what_one_had_that_is_killed_is_checked_again(both, checked, monkeypatch, caplog, count):
    send, one_at_a_time, killed = check_client.send, threading.Lock(), []

    def kill_first(connection, message):
        with one_at_a_time:
            chosen = [] if killed else working()[:count]
            for pid in chosen:
                os.kill(pid, signal.SIGSTOP)  # so that it cannot answer before it is killed
            send(connection, message)
            for pid in chosen:
                os.kill(pid, signal.SIGKILL)
            killed.extend(chosen)

    monkeypatch.setattr(check_client, "send", kill_first)
    assert fetched(both[1]) == CONTENT
    assert len(killed) == count
    assert "has ended" in caplog.text
    assert checked["threads"] >= count
    assert (checked["processes"] > 0) is (count < WORKERS)


def test_a_run_is_checked_a_part_at_a_time(both, checked, monkeypatch):
    monkeypatch.setattr(check_client, "_PART_BYTES", 1)
    assert fetched(both[1]) == CONTENT
    assert checked["processes"] == len(CONTENT)


def test_longer_parts_than_they_have_memory_for_are_for_threads(both, checked, monkeypatch):
    monkeypatch.setattr(check_client, "HALF_BYTES", 100)
    assert fetched(both[1]) == CONTENT
    assert checked["processes"] == 0


def test_a_fetch_that_is_cancelled_leaves_none(both):
    _, b = both

    def cancel(stored_bytes):
        b.bucket.retries.stop.set()
        return Ready(WORKERS)

    try:
        with pytest.raises(OperationCancelled):
            fetched(b, cancel)
    finally:
        b.bucket.retries.stop.clear()
    wait_for(lambda: not working())


def test_threads_that_wait_for_their_turn_read_nothing_after_an_error(both, monkeypatch):
    """There are more threads than may read at a time: the others wait for what processes check."""
    _, b = both
    all_read, known = threading.Barrier(READERS), threading.Event()
    numbers, get_range = count(), b.bucket.get_range

    def read(name, start, end):
        # The first that may read all do so; then one of them fails, and the others end when that is known.
        if start == HEADER_BYTES and next(numbers) < READERS:
            if all_read.wait(60) == 0:
                raise RemoteObjectInvalid("It is damaged.")
            assert known.wait(60)
        return get_range(name, start, end)

    def wait_for_error(*arguments, **options):
        wait(*arguments, **options)
        known.set()

    monkeypatch.setattr(b.bucket, "get_range", read)
    monkeypatch.setattr("jupyter_gpuckpt.remote.fetch.wait", wait_for_error)
    with pytest.raises(RemoteObjectInvalid, match="It is damaged"):
        fetched(b)
    assert next(numbers) == READERS


def test_where_they_cannot_be_started_threads_do_it(both, checked, monkeypatch, caplog):
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    monkeypatch.setattr(worker_processes, "_fork_server", worker_processes._ForkServer())

    class Told(CheckingProcesses):
        def __enter__(self):
            self._start()
            return super().__enter__()

    assert fetched(both[1], lambda stored_bytes: Told(WORKERS)) == CONTENT
    assert checked["processes"] == 0
    assert "cannot be started" in caplog.text


def test_keys_are_neither_in_their_arguments_nor_in_their_environment(both, monkeypatch):
    seen = []
    send = check_client.send

    def look(connection, message):
        for pid in working():
            folder = Path(f"/proc/{pid}")
            seen.append(
                folder.joinpath("cmdline").read_bytes() + folder.joinpath("environ").read_bytes()
            )
            assert message.secret not in seen[-1]
            assert message.secret.hex().encode() not in seen[-1]
        send(connection, message)

    monkeypatch.setattr(check_client, "send", look)
    assert fetched(both[1]) == CONTENT
    assert seen
    assert all(b"fork_server" in one for one in seen)


def test_they_end_with_the_process_that_asked_for_them():
    code = """
        import time
        from jupyter_gpuckpt.images import worker_processes as processes
        from jupyter_gpuckpt.remote.check_client import CheckingProcesses
        checking = CheckingProcesses(3).__enter__()
        while len(checking._workers) < 3:
            time.sleep(0.01)
        print(processes._fork_server.pid, flush=True)
        time.sleep(60)
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as asking:
        parent = int(asking.stdout.readline())
        left = [parent, *processes.children(parent)]
        assert len(left) == 4
        asking.kill()
    wait_for(lambda: not any(processes.alive(pid) for pid in left))


def test_few_processors_or_bytes_are_for_threads(monkeypatch):
    def chosen(processors, stored_bytes):
        monkeypatch.setattr(check_client, "processors", lambda: processors)
        return check_client.checkers(stored_bytes)

    monkeypatch.setattr(worker_processes, "_fork_server", worker_processes._ForkServer())
    assert isinstance(chosen(2, 8 << 30), CheckingThreads)
    assert isinstance(chosen(16, 512 << 20), CheckingThreads)
    assert isinstance(chosen(16, 2 << 30), CheckingProcesses)
    # So much memory is shared with them at most.
    assert chosen(256, 2 << 30)._count * 2 * check_client.HALF_BYTES <= 48 << 20
    # Once the fork server is ready, fewer bytes are worth it.
    monkeypatch.setattr(check_client, "is_ready", lambda: True)
    assert isinstance(chosen(2, 8 << 30), CheckingThreads)
    assert isinstance(chosen(16, 32 << 20), CheckingThreads)
    assert isinstance(chosen(16, 512 << 20), CheckingProcesses)


def test_the_fork_server_says_when_it_is_ready(monkeypatch):
    server = worker_processes._ForkServer()
    monkeypatch.setattr(worker_processes, "_fork_server", server)
    assert not worker_processes.is_ready()
    server.warm_up()
    os.kill(server.pid, signal.SIGSTOP)  # it needs longer than this to import everything
    assert not worker_processes.is_ready()
    os.kill(server.pid, signal.SIGCONT)
    wait_for(worker_processes.is_ready)
    worker_processes.fork().close()
    assert worker_processes.is_ready()
    os.kill(server.pid, signal.SIGKILL)
    wait_for(lambda: not worker_processes.is_ready())
    worker_processes.fork().close()
    wait_for(worker_processes.is_ready)


def test_few_missing_chunks_of_many_are_for_few_bytes(both):
    a, b = both
    with b.store.writer() as writer:
        for content in CONTENT[1:]:
            writer.append_all([Record(digest_of(content), content, len(content), RAW)])
        writer.finish()
    asked = []

    def checkers(stored_bytes):
        asked.append(stored_bytes)
        return CheckingThreads()

    assert fetched(b, checkers) == CONTENT
    everything = sum(one.size for one in a.bucket.list("packs"))
    assert 0 < asked[0] < everything / 100


def test_workers_are_given_back_by_a_fetch_that_fails(both, monkeypatch):
    """Otherwise threads that wait for them would wait forever."""
    left = []

    class Watched(Ready):
        def __exit__(self, *details):
            left.append(self._idle.qsize())
            super().__exit__(*details)

    monkeypatch.setattr(check_client, "_PART_BYTES", 1)
    monkeypatch.setattr(PackWriter, "append_all", Mock(side_effect=StoreFull("It is full.")))
    with pytest.raises(StoreFull):
        fetched(both[1], lambda stored_bytes: Watched(WORKERS))
    assert left == [WORKERS]


def test_a_text_about_a_pack_contains_no_key(both):
    from jupyter_gpuckpt.remote.checking import OpenPack  # noqa: PLC0415
    from jupyter_gpuckpt.remote.pack_refs import PackRef  # noqa: PLC0415

    secret = secrets.token_hex(16).encode()
    assert secret.decode() not in repr(OpenPack(PackRef("packs/a", 1, 1), secret, None))
