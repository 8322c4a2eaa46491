"""A shared source: of all daemons that share a directory, one reads the metadata service and writes the notices for the others.

The directory contains a lock, which the reader holds, and a board for each user that ever was the reader: a file with the standing
notices. By default the daemons of one user share a private directory. An administrator can make all users share one by creating
/run/gpuckpt (owned by root, mode 1777); whoever may write there can then announce a false notice, or hide one.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import logging
import os
import stat
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing, suppress
from pathlib import Path

import msgspec

from ...errors import GpuCkptError
from ...host.foreign_files import open_regular
from ...wire import decoding
from ...wire.place import runtime_dir
from ...wire.reclaim_records import MAX_NOTICES, Notice, Timestamp, now
from .polling import Source, Standing, merged

#: The interval at which the reader rewrites its board, and the age at which a board no longer counts.
BEAT_SECONDS, STALE_SECONDS = 5.0, 20.0
#: The interval at which the others read the boards.
LOOK_SECONDS = 1.0
_MAX_BOARD_BYTES, _MAX_BOARDS = 1 << 17, 100
_FOR_ALL = Path("/run/gpuckpt")

_log = logging.getLogger(__name__)


class Board(msgspec.Struct, frozen=True):
    """The content of a board. `beat`: the time of its writing, on the clock of `reclaim_records.now`."""

    boot_id: str
    beat: Timestamp
    notices: list[Notice] = []


class SharedSource:
    """A source that reads `sources` if no other daemon does. `key`: equal for daemons that would get the same answers."""

    def __init__(self, sources: list[Source], directory: Path, key: str) -> None:
        self._sources, self._directory = sources, directory
        self.name = " and ".join(source.name for source in sources)
        self._boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        # The network namespace is part of the name: a reader in another one may get no answer from the service.
        network = Path("/proc/self/ns/net").stat().st_ino
        self._name = hashlib.blake2b(f"{key} {network}".encode(), digest_size=8).hexdigest()
        self._standing: dict[str, Notice] = {}

    async def notices(self, known: Iterable[Notice] = ()) -> AsyncGenerator[Notice]:
        """Yield notices for ever, from the board of another daemon or from the sources themselves."""
        self._standing = {notice.id: notice for notice in known}
        seen_at = now()
        while True:
            try:
                lock = self._lock()
            except BlockingIOError:
                board = self._board()
                if board is not None and now() - board.beat <= STALE_SECONDS:
                    seen_at = now()
                    told = filter(self._is_of_sources, board.notices)
                    for notice in Standing(self._standing.values()).changes(told):
                        self._note(notice)
                        yield notice
                if now() - seen_at <= STALE_SECONDS:
                    await asyncio.sleep(LOOK_SECONDS)
                    continue
                # The reader does not answer, or no board can be trusted. Two readers are better than none.
                lock = None
            try:
                async with aclosing(self._read_sources(writes=lock is not None)) as found:
                    async for notice in found:
                        yield notice
            finally:
                if lock is not None:
                    os.close(lock)
            seen_at = now()

    async def acknowledge(self, notice: Notice) -> None:
        """Acknowledge a notice to its source: every kernel is safe from it."""
        for source in self._sources:
            if notice.id.startswith(f"{source.name}:"):
                await source.acknowledge(notice)

    async def _read_sources(self, *, writes: bool) -> AsyncGenerator[Notice]:
        """Yield the sources' notices, for ever with the lock (`writes`), else until another daemon reads the sources again."""
        async with aclosing(merged(self._sources, list(self._standing.values()))) as found:
            upcoming = asyncio.ensure_future(anext(found))
            try:
                while writes or not self._is_read_elsewhere():
                    if writes:
                        self._write()
                    pause = BEAT_SECONDS if writes else LOOK_SECONDS
                    done, _ = await asyncio.wait({upcoming}, timeout=pause)
                    if done:
                        notice = upcoming.result()
                        self._note(notice)
                        upcoming = asyncio.ensure_future(anext(found))
                        yield notice
            finally:
                upcoming.cancel()
                await asyncio.wait({upcoming})

    def _is_of_sources(self, notice: Notice) -> bool:
        return any(notice.id.startswith(f"{source.name}:") for source in self._sources)

    def _note(self, notice: Notice) -> None:
        self._standing[notice.id] = notice
        if notice.withdrawn:
            del self._standing[notice.id]

    def _is_read_elsewhere(self) -> bool:
        """Return whether another daemon reads the sources, or the lock is free, so that this one can read with the lock."""
        try:
            lock = self._lock()
        except BlockingIOError:
            board = self._board()
            return board is not None and now() - board.beat <= STALE_SECONDS
        if lock is not None:
            os.close(lock)
        return lock is not None

    def _lock(self) -> int | None:
        """Return the descriptor of the lock; None if it cannot be made. Raises BlockingIOError if another daemon has it."""
        path = self._directory / f"{self._name}.lock"
        try:
            try:
                lock = open_regular(path)
            except FileNotFoundError:
                # In a sticky directory Linux refuses O_CREAT for another user's file (fs.protected_regular).
                with suppress(FileExistsError):
                    os.close(os.open(path, os.O_RDONLY | os.O_CREAT | os.O_EXCL, 0o644))
                    path.chmod(0o644)
                lock = open_regular(path)
        except OSError as error:
            _log.debug("%s: %s", path, error)
            return None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            raise
        except OSError as error:
            _log.debug("%s: %s", path, error)
            os.close(lock)
            return None
        return lock

    def _write(self) -> None:
        standing = list(self._standing.values())[:MAX_NOTICES]
        content = msgspec.json.encode(Board(self._boot_id, now(), standing))
        path = self._directory / f"{self._name}.{os.getuid()}.json"
        temporary = path.with_suffix(".new")
        try:
            with suppress(FileNotFoundError):
                temporary.unlink()
            written = os.open(
                temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644
            )
            with os.fdopen(written, "wb") as file:
                os.fchmod(written, 0o644)
                file.write(content)
            temporary.rename(path)
        except OSError as error:
            _log.debug("%s: %s", path, error)

    def _board(self) -> Board | None:
        """Return the newest board that can be trusted; None if there is none."""
        paths = sorted(self._directory.glob(f"{self._name}.*.json"))[:_MAX_BOARDS]
        boards = [board for path in paths if (board := self._read(path)) is not None]
        return max(boards, key=lambda board: board.beat, default=None)

    def _read(self, path: Path) -> Board | None:
        """Read a board; return None if it cannot be trusted, because anybody may have created a file of that name."""
        try:
            with os.fdopen(open_regular(path), "rb") as file:
                status = os.fstat(file.fileno())
                if path.stem.split(".")[-1] != str(status.st_uid):
                    return None
                if status.st_uid not in {0, os.getuid()} and self._directory.stat().st_uid != 0:
                    return None
                content = file.read(_MAX_BOARD_BYTES + 1)
            board = decoding.from_json(content, Board)
        except (OSError, msgspec.DecodeError) as error:
            _log.debug("%s: %s", path, error)
            return None
        is_ours = board.boot_id == self._boot_id and board.beat <= now()
        return board if is_ours and len(board.notices) <= MAX_NOTICES else None


def directory_for(data_dir: Path) -> Path | None:
    """Return the directory for the lock and the boards: /run/gpuckpt if root has created it, else one of this user.

    Return None if neither is safe; then this daemon shares with nobody.
    """
    try:
        status = _FOR_ALL.lstat()
        if stat.S_ISDIR(status.st_mode) and status.st_uid == 0 and os.access(_FOR_ALL, os.W_OK):
            return _FOR_ALL
    except OSError:
        pass  # the usual case: it does not exist
    try:
        return runtime_dir(data_dir)
    except GpuCkptError as error:
        _log.warning("notices are not shared with other daemons: %s", error)
        return None
