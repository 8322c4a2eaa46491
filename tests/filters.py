"""Seccomp filters as services and containers set them: for what is refused by Linux itself (man seccomp; linux/filter.h)."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Mapping
from types import MappingProxyType

#: A number that no Linux has a system call for.
NO_SUCH_CALL = 4000
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_LOAD, _EQUAL, _RETURN = 0x20, 0x15, 0x06
_SET_NO_NEW_PRIVS, _SET_SECCOMP, _FILTER = 38, 22, 2


def refuse(call: int, error: int, arguments: Mapping[int, int] = MappingProxyType({})) -> None:
    """From now on this thread, and what it starts, meets `error` at a system call, or only where it has these arguments.

    `arguments`: an argument's place, from 0, to its value, of 32 bits.
    """
    wanted = [(0, call), *((16 + 8 * place, value) for place, value in arguments.items())]
    tests = []
    for left, (offset, value) in zip(range(len(wanted) - 1, -1, -1), wanted, strict=True):
        tests += [(_LOAD, 0, 0, offset), (_EQUAL, 0, 2 * left + 1, value)]
    rules = (*tests, (_RETURN, 0, 0, _ERRNO | error), (_RETURN, 0, 0, _ALLOW))
    kept = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *rule) for rule in rules))
    program = struct.pack("HxxxxxxP", len(rules), ctypes.addressof(kept))
    libc = ctypes.CDLL(None)
    libc.prctl(_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    if libc.prctl(_SET_SECCOMP, _FILTER, program, 0, 0):
        raise OSError("no filter could be set")
