"""Which notebook an editor means: its path, found in the code that the editor runs, and the identity of the file."""

from __future__ import annotations

import ast
import ctypes
import os
import re
import struct

#: As VS Code's extension sets it: `__vsc_ipynb_file__ = "/folder/notebook.ipynb"`.
_PATH = re.compile(
    r"""^\s*__vsc_ipynb_file__\s*=\s*(r?"(?:[^"\\\n]|\\.)*"|r?'(?:[^'\\\n]|\\.)*')""", re.M
)
_AT_FDCWD, _STATX_BTIME = -100, 0x800
#: Of struct statx: its size, and the time of the file's creation.
_STATX_BYTES, _BTIME = 256, struct.Struct("<qI")
_BTIME_AT = 0x50


def path_in(code: str) -> str:
    """Return the absolute path of the notebook in an editor's own code; empty if it names none."""
    if (found := _PATH.search(code)) is None:
        return ""
    try:
        path = str(ast.literal_eval(found[1]))
    except (ValueError, SyntaxError):
        return ""
    return os.path.normpath(path) if path.startswith("/") else ""


def identity_of(path: str) -> list[int]:
    """Return what tells a file from another of the same name: its inode and the time of its creation; empty if there is none."""
    try:
        inode = os.stat(path).st_ino  # noqa: PTH116
    except OSError:
        return []
    return [inode, *_created(path)]


def _created(path: str) -> tuple[int, ...]:
    """Return when a file was created, because a new file may get the inode of a deleted one; nothing where Linux does not know it."""
    buffer = ctypes.create_string_buffer(_STATX_BYTES)
    statx = getattr(ctypes.CDLL(None), "statx", None)
    if statx is None or statx(_AT_FDCWD, os.fsencode(path), 0, _STATX_BTIME, buffer):
        return ()
    known = int.from_bytes(buffer.raw[:4], "little") & _STATX_BTIME
    return _BTIME.unpack_from(buffer.raw, _BTIME_AT) if known else ()
