"""The userfaultfd side of a restore: puts every page of every process in place before the first instruction runs.

`criu restore --lazy-pages` connects to `lazy-pages.socket` in its work directory and sends, for every task, its pid and a
userfaultfd (criu/uffd.c). From then on this module answers the few page faults of CRIU's own restorer; when CRIU calls its
action script at `post-restore` (memory mapped and registered, no task running) it fills everything in parallel with
UFFDIO_COPY, closes the descriptors (a page still missing then reads as zeros) and lets the script return. Because all is
present before the tasks run, none of the dangers of lazy restore remain. See man ioctl_userfaultfd.
"""

from __future__ import annotations

import array
import bisect
import ctypes
import errno
import logging
import os
import select
import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Self

from ..errors import ThawFailed
from . import notify
from .criu_images import PAGE, Extent

logger = logging.getLogger(__name__)

_UFFDIO_WAKE = 0x8010AA02
_RANGE = struct.Struct("<QQ")
_UFFDIO_ZEROPAGE = 0xC020AA04
_ZERO = struct.Struct("<QQQq")
_EVENT_PAGEFAULT = 0x12
_EVENT_BYTES = 32
# Answered in one go: every wait for an event is one for Python's lock as well. A thread waits for one page at a time.
_MOST_EVENTS = 64
#: The number that criu restore sends when it has sent all descriptors (criu/include/uffd.h, LAZY_PAGES_RESTORE_FINISHED).
_FINISHED = 0x52535446

_PAGE_COPY = Path(__file__).with_name("page-copy.so")


class _Extent(ctypes.Structure):
    """As in page_copy.c."""

    _fields_ = (
        ("offset", ctypes.c_uint64),
        ("address", ctypes.c_uint64),
        ("length", ctypes.c_uint64),
    )


class ProcessPages:
    """The private pages of one process: a sink for `images.unpack`, and the answer to its page faults.

    The sequence of bytes is that of `ProcessMemory`: the process's lazy extents one after the other.
    """

    module = __name__

    def __init__(
        self, nspid: int, extents: list[Extent], read: Callable[[int, int], bytes]
    ) -> None:
        self.nspid, self._read = nspid, read
        self._extents = (_Extent * len(extents))()
        offset = 0
        for entry, extent in zip(self._extents, extents, strict=True):
            entry.offset, entry.address, entry.length = offset, extent.address, extent.length
            offset += extent.length
        self.length = offset
        by_address = sorted(
            (extent.address, extent.offset, extent.length) for extent in self._extents
        )
        self._addresses = [address for address, _, _ in by_address]
        self._by_address = by_address
        self.descriptor = -1

    def share(self) -> tuple[str, int, bytes]:
        """For another process, as `images.unpack_processes` wants it."""
        return f"{__name__}:shared_pages", self.descriptor, bytes(self._extents)

    def write(self, offset: int, data: memoryview) -> None:
        """Put `data` at `offset` of the sequence into the process. Pages that a fault brought in already are left alone."""
        if failed := self._copy(_copy_pages(), offset, data, patient=True):
            raise self._not_in_place(failed, offset, data)

    def _copy(
        self, copy_pages: Callable[..., int], offset: int, data: memoryview, *, patient: bool
    ) -> int:
        address = ctypes.addressof(ctypes.c_char.from_buffer(data))
        extents = self._extents
        return copy_pages(
            self.descriptor, extents, len(extents), offset, address, len(data), patient
        )

    def _not_in_place(self, failed: int, offset: int, data: memoryview) -> ThawFailed:
        return ThawFailed(
            "A page of the kernel's memory could not be put in place.",
            details=f"process {self.nspid}, {len(data)} bytes at {offset}: {os.strerror(failed)}",
        )

    def fault(self, address: int) -> None:
        """Answer a page fault."""
        address &= ~(PAGE - 1)
        at = bisect.bisect_right(self._addresses, address) - 1
        if at >= 0:
            start, offset, length = self._by_address[at]
            if address - start < length:
                place = offset + address - start
                data = memoryview(bytearray(self._read(place, PAGE)))
                failed = self._copy(_copy_one_page(), place, data, patient=False)
                if failed == errno.EAGAIN:
                    # Who changes the process's areas waits for us to read of it: let this one ask again.
                    self._ioctl(_UFFDIO_WAKE, _RANGE.pack(address, PAGE))
                elif failed:
                    raise self._not_in_place(failed, place, data)
                return
        # A page that is there already is no failure.
        self._ioctl(_UFFDIO_ZEROPAGE, _ZERO.pack(address, PAGE, 0, 0))

    def _ioctl(self, request: int, argument: bytes) -> None:
        buffer = ctypes.create_string_buffer(argument, len(argument))
        _libc().ioctl(self.descriptor, ctypes.c_ulong(request), buffer)


class _SharedPages(ProcessPages):
    """The sink alone, in another process."""

    def __init__(self, descriptor: int, data: bytes) -> None:
        self.nspid, self.descriptor = 0, descriptor
        self._extents = (_Extent * (len(data) // ctypes.sizeof(_Extent))).from_buffer_copy(data)


def shared_pages(descriptor: int, data: bytes) -> ProcessPages:
    """The pages that another process serves; to write to only."""
    return _SharedPages(descriptor, data)


@cache
def _copy_pages() -> Callable[..., int]:
    return _copy_pages_of(ctypes.CDLL(str(_PAGE_COPY)))


@cache
def _copy_one_page() -> Callable[..., int]:
    # With Python's lock held: it takes a microsecond, and getting the lock back takes milliseconds beside a thread that computes.
    return _copy_pages_of(ctypes.PyDLL(str(_PAGE_COPY)))


def _copy_pages_of(library: ctypes.CDLL) -> Callable[..., int]:
    function = library.copy_pages
    function.argtypes = [
        ctypes.c_int,
        ctypes.c_void_p,
        ctypes.c_long,
        ctypes.c_uint64,
        ctypes.c_void_p,
        ctypes.c_uint64,
        ctypes.c_int,
    ]
    return function


@cache
def _libc() -> ctypes.PyDLL:
    return ctypes.PyDLL(None)


class PageFiller:
    """Serves one `criu restore`. Use as a context manager around it.

    `prepare` is called at once, in a thread of ours, beside CRIU; what it returns is called in the same thread when the memory
    is mapped, and must write every page of `pages` (by `ProcessPages.write`). What either raises fails the restore and is
    raised again by `result`.
    """

    def __init__(
        self,
        images: Path,
        notify_path: Path,
        pages: list[ProcessPages],
        prepare: Callable[[], Callable[[], None]],
    ) -> None:
        self._images, self._notify, self._prepare = images, notify_path, prepare
        self._pages = {page.nspid: page for page in pages}
        self._stop_read, self._stop_write = os.pipe()
        self._done = threading.Event()
        self._error: BaseException | None = None
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Self:
        for path, serve in (
            (self._images / "lazy-pages.socket", self._serve_descriptors),
            (self._notify, self._serve_notify),
        ):
            server = notify.listen(path)
            self._sockets.append(server)
            thread = threading.Thread(
                target=self._run, args=(serve, server), name=path.name, daemon=True
            )
            thread.start()
            self._threads.append(thread)
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop()
        for thread in self._threads:
            thread.join()
        for sock in self._sockets:
            sock.close()
        for page in self._pages.values():
            if page.descriptor >= 0:
                os.close(page.descriptor)
                page.descriptor = -1
        os.close(self._stop_read)
        os.close(self._stop_write)

    def result(self) -> None:
        """Raise what went wrong, if anything did."""
        if self._error is not None:
            raise self._error

    def _stop(self) -> None:
        self._done.set()
        with suppress(OSError):
            os.write(self._stop_write, b"x")

    def _run(self, serve: Callable[[socket.socket], None], server: socket.socket) -> None:
        try:
            serve(server)
        except BaseException as error:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        self._error = self._error or error
        self._stop()

    def _accept(self, server: socket.socket) -> socket.socket | None:
        """The connection, or None when we are told to stop first."""
        ready, _, _ = select.select([server.fileno(), self._stop_read], [], [])
        return server.accept()[0] if server.fileno() in ready else None

    def _serve_descriptors(self, server: socket.socket) -> None:
        connection = self._accept(server)
        if connection is None:
            return
        # Open until CRIU has ended: its last word comes after post-restore, and nobody there would fail the restore.
        self._sockets.append(connection)
        poll = select.poll()
        poll.register(self._stop_read, select.POLLIN)
        poll.register(connection, select.POLLIN)
        faults: dict[int, ProcessPages] = {}
        while not self._done.is_set():
            for descriptor, _ in poll.poll():
                if descriptor == connection.fileno():
                    number = _receive_number(connection)
                    if number == _FINISHED:
                        poll.unregister(connection)
                    elif number >= 0:
                        page = self._receive(connection, number)
                        faults[page.descriptor] = page
                        poll.register(page.descriptor, select.POLLIN)
                    # Else it is a zombie, which has no memory: no descriptor follows.
                elif descriptor in faults:
                    _answer(faults[descriptor])

    def _receive(self, connection: socket.socket, nspid: int) -> ProcessPages:
        """Receive the descriptor of process `nspid`. Raises ThawFailed for a process that the snapshot does not list."""
        _, ancillary, _, _ = connection.recvmsg(1, socket.CMSG_SPACE(4))
        descriptor = array.array("i", ancillary[0][2][:4])[0]
        page = self._pages.get(nspid)
        if page is None:
            os.close(descriptor)
            raise ThawFailed(
                "CRIU restored a process that the snapshot does not list.",
                details=f"process {nspid}",
            )
        page.descriptor = descriptor
        os.set_blocking(descriptor, False)
        return page

    def _serve_notify(self, server: socket.socket) -> None:
        fill = self._prepare()
        connection = self._accept(server)
        if connection is None:
            return
        with connection:
            try:
                fill()
            except BaseException as error:
                # Before the connection is closed: that ends CRIU, and then `result` is asked.
                self._fail(error)
                return
            # Closed, so that missing pages are zeros from now on; the fault thread ends first: it polls them.
            self._stop()
            self._threads[0].join()
            for page in self._pages.values():
                if page.descriptor >= 0:
                    os.close(page.descriptor)
                    page.descriptor = -1
            if self._error is None:
                notify.go_on(connection)


def _receive_number(connection: socket.socket) -> int:
    """Receive what CRIU sends first of each process: its pid, -1 for a zombie, `_FINISHED` at the end.

    Reads one number only: page faults must be answered before the next one may come.
    """
    word = connection.recv(4, socket.MSG_WAITALL)
    return struct.unpack("<i", word)[0] if len(word) == 4 else _FINISHED


def _answer(page: ProcessPages) -> None:
    try:
        events = os.read(page.descriptor, _MOST_EVENTS * _EVENT_BYTES)
    except BlockingIOError:
        return
    for start in range(0, len(events), _EVENT_BYTES):
        if events[start] == _EVENT_PAGEFAULT:
            page.fault(struct.unpack_from("<Q", events, start + 16)[0])
