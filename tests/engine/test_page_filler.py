"""Pages get into a process's memory whatever is there already and however its areas lie. Here the process is ourselves."""

import ctypes
import mmap
import os
from collections.abc import Iterator

import pytest

from jupyter_gpuckpt.engine.criu_images import PAGE, Extent
from jupyter_gpuckpt.engine.page_filler import ProcessPages
from jupyter_gpuckpt.errors import ThawFailed
from jupyter_gpuckpt.host.attempts import CALLS

PAGES = 64
DATA = b"".join(bytes([number % 255 + 1]) * PAGE for number in range(PAGES))
_UFFDIO_API, _UFFDIO_REGISTER = 0xC018AA3F, 0xC020AA00
_MISSING = 1


class Memory:
    """Memory of ours that nothing has touched yet, with a userfaultfd; its pages are known to be missing."""

    def __init__(self, pages: int) -> None:
        self.map = mmap.mmap(-1, pages * PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.map))
        self._libc = ctypes.CDLL(None, use_errno=True)
        self.descriptor = self._libc.syscall(CALLS["userfaultfd"], os.O_CLOEXEC | os.O_NONBLOCK)
        if self.descriptor < 0:
            pytest.skip("userfaultfd is not permitted here")
        self.control(_UFFDIO_API, 0xAA, 0, 0)

    def control(self, request: int, *words: int) -> None:
        argument = (ctypes.c_uint64 * len(words))(*words)
        assert self._libc.ioctl(self.descriptor, ctypes.c_ulong(request), argument) == 0

    def register(self, first: int, pages: int) -> None:
        where = self.address + first * PAGE
        self.control(_UFFDIO_REGISTER, where, pages * PAGE, _MISSING, 0)

    def protect(self, first: int, pages: int) -> None:
        """Make these pages an area of their own, as other rights do."""
        where = ctypes.c_void_p(self.address + first * PAGE)
        assert self._libc.mprotect(where, ctypes.c_size_t(pages * PAGE), mmap.PROT_READ) == 0


@pytest.fixture
def memory() -> Iterator[Memory]:
    memory = Memory(2 * PAGES)
    yield memory
    os.close(memory.descriptor)


def pages_in(memory: Memory, extents: list[tuple[int, int]]) -> ProcessPages:
    """A process whose lazy extents are these: (first page, number of pages)."""
    found = [Extent(memory.address + at * PAGE, count * PAGE, lazy=True) for at, count in extents]
    pages = ProcessPages(1, found, lambda offset, length: DATA[offset : offset + length])
    pages.descriptor = memory.descriptor
    return pages


def test_one_write_fills_several_extents_in_their_order(memory):
    memory.register(0, 2 * PAGES)
    pages = pages_in(memory, [(100, 4), (0, 30), (40, 30)])
    pages.write(0, memoryview(bytearray(DATA[: 20 * PAGE])))
    pages.write(20 * PAGE, memoryview(bytearray(DATA[20 * PAGE :])))
    os.close(memory.descriptor)
    memory.descriptor = os.open("/dev/null", os.O_RDONLY)
    assert memory.map[100 * PAGE : 104 * PAGE] == DATA[: 4 * PAGE]
    assert memory.map[: 30 * PAGE] == DATA[4 * PAGE : 34 * PAGE]
    assert memory.map[40 * PAGE : 70 * PAGE] == DATA[34 * PAGE :]
    assert not any(memory.map[30 * PAGE : 40 * PAGE])


def test_a_page_that_a_fault_brought_in_is_left_alone(memory):
    memory.register(0, PAGES)
    pages = pages_in(memory, [(0, PAGES)])
    for number in (0, 7, 8, PAGES - 1):
        pages.fault(memory.address + number * PAGE + 123)
    memory.map[7 * PAGE] = 255
    pages.write(0, memoryview(bytearray(DATA)))
    assert memory.map[7 * PAGE] == 255
    assert (
        memory.map[: 7 * PAGE] + memory.map[8 * PAGE : PAGES * PAGE]
        == DATA[: 7 * PAGE] + DATA[8 * PAGE :]
    )


def test_a_fault_outside_of_all_extents_is_zeros(memory):
    memory.register(0, 2 * PAGES)
    pages = pages_in(memory, [(0, PAGES)])
    pages.fault(memory.address + PAGES * PAGE)
    pages.fault(memory.address + PAGES * PAGE)
    assert not any(memory.map[PAGES * PAGE : (PAGES + 1) * PAGE])


@pytest.mark.parametrize("own", [[(1, 1)], [(31, 2)], [(5, 1), (7, 9), (50, 13)]])
def test_an_extent_may_span_areas(memory, own):
    for first, count in own:
        memory.protect(first, count)
    memory.register(0, PAGES)
    pages_in(memory, [(0, PAGES)]).write(0, memoryview(bytearray(DATA)))
    assert memory.map[: PAGES * PAGE] == DATA


def test_what_the_system_refuses_is_said(memory):
    memory.register(0, PAGES // 2)
    pages = pages_in(memory, [(0, PAGES)])
    with pytest.raises(ThawFailed) as caught:
        pages.write(0, memoryview(bytearray(DATA)))
    assert "process 1" in caught.value.details
    pages = pages_in(memory, [(0, 4)])
    with pytest.raises(ThawFailed):
        pages.write(2 * PAGE, memoryview(bytearray(DATA)))
