"""Bytes that wait in terminals (ptys) while a tree stands still: taken before CRIU looks, and put back as they were.

CRIU writes such bytes through the terminal again: newlines are translated twice, input is echoed twice. It leaves out those of a
terminal whose program has ended, and does not tell the reader that it has. Man pages: pty, tty_ioctl, termios.
"""

from __future__ import annotations

import fcntl
import logging
import os
import select
import struct
import termios
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from ...host import processes
from ...wire import decoding
from ...wire.manifest_records import SCRATCH
from ..tree.duplicates import duplicate
from ..tree.launch import pids
from ..tree.tree import Tree
from . import proc_facts
from .fact_records import TerminalQueue

logger = logging.getLogger(__name__)

_JOURNAL = f"{SCRATCH}/terminal-queues"
_TCGETS2, _TCSETS2, _TIOCGPTPEER, _TIOCSPTLCK, _TIOCGPTLCK = (
    0x802C542A,
    0x402C542B,
    0x5441,
    0x40045431,
    0x80045439,
)
_TIOCPKT, _TIOCGPKT = 0x5420, 0x80045438
#: `struct termios2`: four flag words, the line discipline, 19 control characters, two speeds.
_SETTINGS = struct.Struct("=4IB19s2I")
_ICANON, _OPOST = 0x2, 0x1
_PIECE = 1 << 16
#: More than the buffers of a terminal hold.
_MOST_BYTES = 1 << 20


class TerminalQueues:
    """The queues of a tree's terminals, from `take` to `put_back`. Until then they lie in a journal, too."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self.queues: list[TerminalQueue] = []

    def take(self, descriptors: Mapping[int, Sequence[int]]) -> None:
        """Take what waits in the terminals of stopped processes. An error is logged; CRIU then does what it can."""
        mains, used = _terminals(descriptors)
        for index, (pid, number) in mains.items():
            try:
                self._take(pid, number, is_used=index in used)
            except (OSError, struct.error) as error:
                logger.warning("terminal %s of process %d is not emptied: %s", index, pid, error)

    def _take(self, pid: int, number: int, *, is_used: bool) -> None:
        """Empty a terminal. `is_used`: a program has the other end open."""
        queue = TerminalQueue(processes.nspid(pid) or 0, number)
        with _main_end(pid, number) as main:
            queue.ended = _has_ended(main)
            self.queues.append(queue)
            for piece in _pieces(main):
                queue.output += piece
                self._note()
            # The end of a program that has not begun yet stays closed: to close it would end the terminal.
            if is_used:
                with _other_end(main) as other, _raw(other, canonical=False):
                    for piece in _pieces(other):
                        queue.input += piece
                        self._note()
        if not (queue.output or queue.input or queue.ended):
            self.queues.remove(queue)

    def _note(self) -> None:
        self._tree.inside(_JOURNAL).write_bytes(msgspec.msgpack.encode(self.queues))

    def put_back(self) -> None:
        """Put everything back, before any task runs on; a second call does nothing."""
        here = proc_facts.host_pids(pids(self._tree)) if self.queues else {}
        while self.queues:
            put(self.queues.pop(), here)
        with suppress(OSError):  # the tree, and its scratch with it, may be gone
            self._tree.inside(_JOURNAL).unlink(missing_ok=True)


def recover(tree: Tree) -> None:
    """Put back what a killed daemon had taken."""
    with suppress(OSError, msgspec.DecodeError):
        found = TerminalQueues(tree)
        data = tree.inside(_JOURNAL).read_bytes()
        found.queues = decoding.from_msgpack(data, list[TerminalQueue])
        found.put_back()


def put(queue: TerminalQueue, here: Mapping[int, int]) -> bool:
    """Put a queue into its terminal, whose tasks are stopped; return whether all of it is there. `here`: pids by those in the tree."""
    try:
        with _main_end(here[queue.pid], queue.descriptor) as main, _other_end(main) as other:
            if queue.output:
                with _raw(other, canonical=False):
                    _write(other, queue.output)
            if queue.input:
                with _raw(other, canonical=_is_canonical(other)):
                    _write(main, queue.input)
                    # It waits until the line discipline has taken the bytes, with these settings.
                    select.select([other], [], [], 0)
    except (OSError, LookupError, struct.error) as error:
        logger.warning("bytes of terminal %s were lost: %s", queue.descriptor, error)
        return False
    return True


def _terminals(
    descriptors: Mapping[int, Sequence[int]],
) -> tuple[dict[str, tuple[int, int]], set[str]]:
    """Return process and descriptor of each terminal's main end, by its number, and the numbers of those whose other end is open."""
    mains, used = dict[str, tuple[int, int]](), set[str]()
    for pid, number in (
        (pid, number) for pid, numbers in descriptors.items() for number in numbers
    ):
        with suppress(OSError):
            name = os.readlink(f"/proc/{pid}/fd/{number}")
            if name.endswith("/ptmx"):
                with open(f"/proc/{pid}/fdinfo/{number}") as lines:
                    for line in lines:
                        if line.startswith("tty-index"):
                            mains.setdefault(line.split()[1], (pid, number))
            elif name.startswith("/dev/pts/"):
                used.add(Path(name).name)
    return mains, used


@contextmanager
def _main_end(pid: int, number: int) -> Iterator[int]:
    """Yield a duplicate of a process's descriptor, in which nothing is sent before the bytes (packet mode) meanwhile."""
    copy = duplicate(pid, number)
    try:
        with _without_packets(copy):
            yield copy
    finally:
        os.close(copy)


@contextmanager
def _other_end(main: int) -> Iterator[int]:
    """Open the other end of a terminal, without waiting; if no program has it open, closing it ends the terminal (EIO) again."""
    locked = struct.unpack("=i", fcntl.ioctl(main, _TIOCGPTLCK, bytes(4)))[0]
    if locked:
        fcntl.ioctl(main, _TIOCSPTLCK, struct.pack("=i", 0))
    try:
        other = fcntl.ioctl(main, _TIOCGPTPEER, os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK)
    finally:
        if locked:
            fcntl.ioctl(main, _TIOCSPTLCK, struct.pack("=i", 1))
    try:
        yield other
    finally:
        os.close(other)


@contextmanager
def _raw(other: int, *, canonical: bool) -> Iterator[None]:
    """Let bytes pass a terminal unchanged and without an echo. `canonical`: input still consists of lines."""
    before = fcntl.ioctl(other, _TCGETS2, bytes(_SETTINGS.size))
    _, output, control, _, line, _, *speeds = _SETTINGS.unpack(before)
    # No character has a meaning: a control character of 0 is none.
    local = _ICANON if canonical else 0
    raw = _SETTINGS.pack(0, output & ~_OPOST, control, local, line, bytes(19), *speeds)
    fcntl.ioctl(other, _TCSETS2, raw)
    try:
        yield
    finally:
        fcntl.ioctl(other, _TCSETS2, before)


@contextmanager
def _without_packets(main: int) -> Iterator[None]:
    """Switch off packet mode, which sends a byte before each read, and tells of changed settings."""
    packets = struct.unpack("=i", fcntl.ioctl(main, _TIOCGPKT, bytes(4)))[0]
    if packets:
        fcntl.ioctl(main, _TIOCPKT, struct.pack("=i", 0))
    try:
        yield
    finally:
        if packets:
            fcntl.ioctl(main, _TIOCPKT, struct.pack("=i", 1))


def _is_canonical(other: int) -> bool:
    return bool(termios.tcgetattr(other)[3] & _ICANON)


def _has_ended(main: int) -> bool:
    poll = select.poll()
    poll.register(main, select.POLLIN)
    return any(events & select.POLLHUP for _, events in poll.poll(0))


def _pieces(end: int) -> Iterator[bytes]:
    """Yield what can be read without waiting."""
    total = 0
    while total < _MOST_BYTES and select.select([end], [], [], 0)[0]:
        try:
            piece = os.read(end, _PIECE)
        except (
            BlockingIOError,
            OSError,
        ):  # EIO: all was read of a terminal whose program has ended
            return
        if not piece:
            return
        total += len(piece)
        yield piece


def _write(end: int, data: bytes) -> None:
    """Write all bytes. Raises OSError, also where they find no room."""
    while data:
        if not select.select([], [end], [], 1.0)[1]:
            raise BlockingIOError(f"{len(data)} bytes have no room")
        data = data[os.write(end, data[:2048]) :]
