"""Notices of Linux that the files of a folder have changed (man 7 inotify)."""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Callable
from pathlib import Path

_IN_MODIFY, _IN_MOVED_TO, _IN_ONLYDIR = 0x2, 0x80, 0x01000000
_FLAGS = os.O_NONBLOCK | os.O_CLOEXEC
_EVENT = struct.Struct("iIII")
_libc = ctypes.CDLL(None, use_errno=True)


class FileChanges:
    """The watched folders. `descriptor` can be read when something has changed; `read` then calls the folders' functions."""

    def __init__(self) -> None:
        self.descriptor = _libc.inotify_init1(_FLAGS)
        if self.descriptor < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), "inotify_init1")
        self._functions: dict[int, Callable[[], None]] = {}

    def watch(self, folder: Path, function: Callable[[], None]) -> int:
        """Have a function called whenever a file in the folder is written or replaced; return the number of this watch."""
        number: int = _libc.inotify_add_watch(
            self.descriptor, os.fsencode(folder), _IN_MODIFY | _IN_MOVED_TO | _IN_ONLYDIR
        )
        if number < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(folder))
        self._functions[number] = function
        return number

    def forget(self, number: int) -> None:
        """Watch a folder no longer."""
        if self._functions.pop(number, None) is not None:
            _libc.inotify_rm_watch(self.descriptor, number)

    def read(self) -> None:
        """Call the functions of the folders that have changed, once each."""
        try:
            data = os.read(self.descriptor, 65536)
        except BlockingIOError:
            return
        at, changed = 0, dict[int, None]()
        while at < len(data):
            number, _, _, length = _EVENT.unpack_from(data, at)
            changed[number] = None
            at += _EVENT.size + length
        for number in changed:
            if function := self._functions.get(number):
                function()
