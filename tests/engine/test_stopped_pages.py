"""Pages get into a stopped process however its areas lie, and every one that does not is told."""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
from collections.abc import Iterator
from contextlib import suppress

import pytest

from jupyter_gpuckpt.engine.criu.images import PAGE
from jupyter_gpuckpt.engine.memory.page_plan import Piece
from jupyter_gpuckpt.engine.memory.stopped_pages import StoppedPages, shared_pages
from jupyter_gpuckpt.errors import ThawFailed

PAGES = 2048
DATA = b"".join((number + 1).to_bytes(2, "big") * (PAGE // 2) for number in range(PAGES))
_GUARD_INSTALL = 102


class Stopped:
    """A child that is stopped, with `PAGES` pages of memory that nothing has touched, between two that are not there."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._map = mmap.mmap(-1, (PAGES + 2) * PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._map)) + PAGE
        self.pid = 0

    def start(self, call: str = "", *arguments: int) -> bool:
        """Start the child; whether it could make this call, about its third page, before."""
        self.pid = os.fork()
        if self.pid == 0:
            for page in (-1, PAGES):
                self._call("munmap", page)
            if call and self._call(call, 3, *arguments):
                os._exit(1)
            os.kill(os.getpid(), signal.SIGSTOP)
        return os.WIFSTOPPED(os.waitpid(self.pid, os.WUNTRACED)[1])

    def _call(self, name: str, page: int, *arguments: int) -> int:
        where, length = ctypes.c_void_p(self.address + page * PAGE), ctypes.c_size_t(PAGE)
        return int(self._libc[name](where, length, *arguments))

    def end(self) -> None:
        with suppress(ProcessLookupError, ChildProcessError):
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)

    def read(self, first: int, pages: int) -> bytes:
        with open(f"/proc/{self.pid}/mem", "rb", buffering=0) as memory:
            return os.pread(memory.fileno(), pages * PAGE, self.address + first * PAGE)

    def pages(self, pieces: list[tuple[int, int, int]]) -> StoppedPages:
        """Pieces of (page in the stream, first page here, number of pages)."""
        found = [
            Piece(offset * PAGE, self.address + first * PAGE, count * PAGE)
            for offset, first, count in pieces
        ]
        made = StoppedPages(1, found)
        made.pid = self.pid
        return made


@pytest.fixture
def stopped() -> Iterator[Stopped]:
    made = Stopped()
    yield made
    made.end()


def data(first: int, pages: int) -> memoryview:
    return memoryview(bytearray(DATA[first * PAGE : (first + pages) * PAGE]))


def test_one_write_fills_several_pieces_in_the_order_of_the_stream(stopped):
    stopped.start()
    pages = stopped.pages([(0, 100, 4), (4, 0, 30), (34, 40, 30)])
    pages.write(0, data(0, 20))
    pages.write(20 * PAGE, data(20, 44))
    assert stopped.read(100, 4) == DATA[: 4 * PAGE]
    assert stopped.read(0, 30) == DATA[4 * PAGE : 34 * PAGE]
    assert stopped.read(40, 30) == DATA[34 * PAGE : 64 * PAGE]
    assert not any(stopped.read(30, 10))


def test_what_lies_between_the_pieces_is_left_out(stopped):
    stopped.start()
    pages = stopped.pages([(2, 0, 2), (10, 2, 3)])
    pages.write(0, data(0, 1))
    pages.write(PAGE, data(1, 11))
    pages.write(12 * PAGE, data(12, 5))
    pages.write(30 * PAGE, data(30, 1))
    assert stopped.read(0, 2) == DATA[2 * PAGE : 4 * PAGE]
    assert stopped.read(2, 3) == DATA[10 * PAGE : 13 * PAGE]
    assert not any(stopped.read(5, 50))


def test_more_pieces_than_one_call_takes(stopped):
    stopped.start()
    pieces = [(number, 2 * number % PAGES + 2 * number // PAGES, 1) for number in range(PAGES)]
    stopped.pages(pieces).write(0, data(0, PAGES))
    assert stopped.read(0, 3) == b"".join(
        DATA[number * PAGE : (number + 1) * PAGE] for number in (0, PAGES // 2, 1)
    )


def test_another_process_writes_the_same(stopped):
    stopped.start()
    pages = stopped.pages([(0, 7, 5)])
    builder, descriptor, told = pages.share()
    assert builder.endswith("stopped_pages:shared_pages")
    shared_pages(descriptor, told).write(0, data(0, 5))
    assert stopped.read(7, 5) == DATA[: 5 * PAGE]


@pytest.mark.parametrize("case", ["read-only", "end", "nothing", "guard", "gone"])
def test_what_is_refused_or_comes_short_is_said(stopped, case):
    calls = {"read-only": ("mprotect", mmap.PROT_READ), "guard": ("madvise", _GUARD_INSTALL)}
    if not stopped.start(*calls.get(case, ())):
        pytest.skip("Linux has no guard pages")
    pages = stopped.pages([(0, {"end": PAGES - 3, "nothing": PAGES}.get(case, 0), 6)])
    if case == "gone":
        os.kill(stopped.pid, signal.SIGKILL)
        os.waitid(os.P_PID, stopped.pid, os.WEXITED | os.WNOWAIT)
    with pytest.raises(ThawFailed) as caught:
        pages.write(0, data(0, 6))
    assert "process 1" in caught.value.details
    assert caught.value.hint
    if case not in ("gone", "nothing"):
        assert f"only {3 * PAGE} were" in caught.value.details
