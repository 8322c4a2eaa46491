"""One reader of a metadata service for all daemons that share a directory."""

from __future__ import annotations

import asyncio
import os
import stat
from contextlib import aclosing, suppress
from pathlib import Path

import msgspec
import pytest

from jupyter_gpuckpt.daemon.reclaim import aws as aws_source
from jupyter_gpuckpt.daemon.reclaim import shared
from jupyter_gpuckpt.daemon.reclaim.endpoints import Endpoint
from jupyter_gpuckpt.daemon.reclaim.shared import Board, SharedSource
from jupyter_gpuckpt.wire.reclaim_records import Notice, NoticeKind, now
from tests.conftest import PATIENCE
from tests.reclaim.conftest import PACE

BOOT_ID = Path("/proc/sys/kernel/random/boot_id").read_text().strip()


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    monkeypatch.setattr(shared, "LOOK_SECONDS", 0.02)
    monkeypatch.setattr(shared, "BEAT_SECONDS", 0.1)


class Daemon:
    """What a daemon does with a shared source; it ends as a killed one does."""

    def __init__(self, url, directory):
        self.endpoint = Endpoint(url)
        source = SharedSource(aws_source.sources(self.endpoint, PACE), directory, url)
        self.source, self.notices = source, []
        self._task = asyncio.ensure_future(self._read())

    async def _read(self):
        async with aclosing(self.source.notices()) as found:
            async for notice in found:
                self.notices.append(notice)

    async def end(self):
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task
        self.endpoint.close()
        await asyncio.sleep(0)


async def until(condition):
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110 - conditions of another thread
            await asyncio.sleep(0.005)


def run(url, directory, count, story):
    """Run a story with so many daemons."""

    async def told():
        daemons = [Daemon(url, directory) for _ in range(count)]
        try:
            await story(daemons)
        finally:
            for daemon in daemons:
                await daemon.end()

    asyncio.run(told())


def test_of_twenty_daemons_one_asks_and_all_are_told(aws, tmp_path):
    async def story(daemons):
        await until(lambda: aws.count(aws.SPOT) >= 10)
        assert aws.count(aws.TOKEN) == 1
        aws.announce(120)
        await until(lambda: all(daemon.notices for daemon in daemons))
        assert len({daemon.notices[0].id for daemon in daemons}) == 1
        del aws.values[aws.SPOT]
        await until(lambda: all(len(daemon.notices) == 2 for daemon in daemons))
        assert all(daemon.notices[1].withdrawn for daemon in daemons)
        assert aws.count(aws.TOKEN) == 1, "the others asked, too"

    run(aws.url, tmp_path, 20, story)


def test_when_the_reader_ends_another_one_reads_and_tells_nothing_twice(aws, tmp_path):
    async def story(daemons):
        aws.announce(120)
        await until(lambda: all(daemon.notices for daemon in daemons))
        await daemons[0].end()  # it came first, so it has the lock
        await until(lambda: aws.count(aws.TOKEN) == 2)
        del aws.values[aws.SPOT]
        await until(lambda: all(len(daemon.notices) == 2 for daemon in daemons[1:]))
        assert all(daemon.notices[1].withdrawn for daemon in daemons[1:])

    run(aws.url, tmp_path, 5, story)


def test_what_was_withdrawn_between_two_readers_is_noticed(aws, tmp_path):
    async def story(daemons):
        aws.announce(120)
        await until(lambda: all(daemon.notices for daemon in daemons))
        del aws.values[aws.SPOT]
        await daemons[0].end()
        await until(lambda: len(daemons[1].notices) == 2)
        assert daemons[1].notices[1].withdrawn

    run(aws.url, tmp_path, 2, story)


def test_a_reader_that_stands_still_is_replaced_for_as_long(aws, tmp_path, monkeypatch):
    monkeypatch.setattr(shared, "STALE_SECONDS", 0.2)
    source = SharedSource([], tmp_path, aws.url)
    lock = source._lock()  # its holder writes nothing

    async def story(daemons):
        await until(lambda: aws.count(aws.SPOT) >= 3)
        aws.announce(120)
        await until(lambda: all(daemon.notices for daemon in daemons))
        source._write()
        board = source._board()
        assert board is not None
        monkeypatch.setattr(shared, "STALE_SECONDS", 60.0)
        await asyncio.sleep(0.1)  # a request may be on its way
        before = len(aws.requests)
        await asyncio.sleep(0.3)
        assert len(aws.requests) == before

    try:
        run(aws.url, tmp_path, 1, story)
    finally:
        os.close(lock)


def test_where_nothing_can_be_written_every_daemon_reads_by_itself(aws, tmp_path):
    async def story(daemons):
        aws.announce(120)
        await until(lambda: all(daemon.notices for daemon in daemons))
        assert aws.count(aws.TOKEN) == 2

    run(aws.url, tmp_path / "missing", 2, story)


# ---- boards that others may have written ----------------------------------------------------------------------------


@pytest.fixture
def source(tmp_path):
    return SharedSource([], tmp_path, "key")


@pytest.fixture
def board_path(source, tmp_path):
    return tmp_path / f"{source._name}.{os.getuid()}.json"


def board(**changes):
    notice = Notice("aws-spot:1", NoticeKind.RECLAIM, now() + 60)
    return msgspec.structs.replace(Board(BOOT_ID, now(), [notice]), **changes)


def test_a_board_is_read_as_it_was_written(source, board_path):
    source._note(Notice("aws-spot:1", NoticeKind.RECLAIM, 5.0))
    source._write()
    assert stat.S_IMODE(board_path.stat().st_mode) == 0o644
    assert source._board().notices == [Notice("aws-spot:1", NoticeKind.RECLAIM, 5.0)]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff",
        b"[" * 100_000,
        b"x" * (1 << 20),
        msgspec.json.encode(board(boot_id="another boot")),
        msgspec.json.encode(board(beat=now() + 1e6)),
        msgspec.json.encode(board(notices=board().notices * 51)),
        msgspec.json.encode(board(beat=now())).replace(b"aws-spot", b"a" * 300),
        msgspec.json.encode(board()).replace(b'"reclaim"', b'"else"'),
        b'{"boot_id":"%s","beat":1e400}' % BOOT_ID.encode(),
    ],
)
def test_a_board_that_makes_no_sense_is_not_believed(source, board_path, content):
    board_path.write_bytes(msgspec.json.encode(board()))
    assert source._board() is not None
    board_path.write_bytes(content)
    assert source._board() is None


def test_a_board_cannot_tell_of_what_is_not_read_here(tmp_path):
    source = SharedSource(aws_source.sources(None), tmp_path, "key")
    own = Notice("aws-spot:1", NoticeKind.RECLAIM, 5.0)
    assert source._is_of_sources(own)
    for other in ("requested:hook", "aws-spot-1", "azure:1"):
        assert not source._is_of_sources(msgspec.structs.replace(own, id=other))


def test_links_pipes_and_boards_under_a_false_name_are_not_read(source, board_path, tmp_path):
    (tmp_path / "elsewhere").write_bytes(msgspec.json.encode(board()))
    board_path.symlink_to(tmp_path / "elsewhere")
    assert source._board() is None
    board_path.unlink()
    os.mkfifo(board_path)
    assert source._board() is None
    board_path.unlink()
    another = board_path.with_name(f"{source._name}.{os.getuid() + 1}.json")
    another.write_bytes(msgspec.json.encode(board()))
    assert source._board() is None


@pytest.mark.skipif(os.getuid() != 0, reason="gives files to another user")
@pytest.mark.parametrize("owner", [0, 4242])
def test_another_users_board_counts_only_in_the_administrators_directory(
    source, board_path, tmp_path, owner, monkeypatch
):
    board_path = board_path.with_name(f"{source._name}.4243.json")
    board_path.write_bytes(msgspec.json.encode(board()))
    os.chown(board_path, 4243, 4243)
    os.chown(tmp_path, owner, owner)
    assert (source._board() is not None) == (owner == 0)


def test_a_lock_that_is_a_link_is_not_followed(source, tmp_path):
    target = tmp_path / "target"
    (tmp_path / f"{source._name}.lock").symlink_to(target)
    assert source._lock() is None
    assert not target.exists()


def test_the_administrators_directory_is_used_if_root_made_it(tmp_path, monkeypatch):
    monkeypatch.setattr(shared, "_FOR_ALL", tmp_path)
    monkeypatch.setenv("JUPYTER_GPUCKPT_RUNTIME_DIR", str(tmp_path / "own"))
    monkeypatch.setenv("HOME", "/")
    expected = tmp_path if tmp_path.stat().st_uid == 0 else tmp_path / "own"
    assert shared.directory_for(tmp_path) == expected
    monkeypatch.setattr(shared, "_FOR_ALL", tmp_path / "missing")
    assert shared.directory_for(tmp_path) == tmp_path / "own"
