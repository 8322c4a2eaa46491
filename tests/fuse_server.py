"""A file system in user space with one file, for tests: `python -m tests.fuse_server FOLDER` mounts it and serves it until it is killed.

It speaks the protocol of /dev/fuse itself (include/uapi/linux/fuse.h), so nothing has to be installed. Linux remembers names and
attributes for an hour, and asks the server only when a file is opened, read or closed.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import struct
import sys
from collections.abc import Callable

CONTENT = b"served\n"
NAME = "file"
_LOOKUP, _FORGET, _GETATTR, _OPEN, _READ, _STATFS = 1, 2, 3, 14, 15, 17
_RELEASE, _FLUSH, _INIT, _OPENDIR, _RELEASEDIR, _INTERRUPT, _BATCH_FORGET = (
    18,
    25,
    26,
    27,
    29,
    36,
    42,
)
_HOUR = 3600


def mount(folder: str) -> int:
    """Mount the file system; return the descriptor by which Linux asks for everything."""
    device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    options = f"fd={device},rootmode=40000,user_id={os.getuid()},group_id={os.getgid()},allow_other"
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"served", folder.encode(), b"fuse.served", 0, options.encode()):
        raise OSError(ctypes.get_errno(), "mount")
    return device


def serve(device: int) -> None:
    """Answer Linux's requests until the file system is unmounted or aborted."""
    while True:
        try:
            request = os.read(device, 1 << 20)
        except OSError as error:
            if error.errno == errno.ENODEV:
                return
            raise
        _, opcode, unique, node = struct.unpack_from("<IIQQ", request)
        if opcode in (_FORGET, _INTERRUPT, _BATCH_FORGET):
            continue
        answer = _answer(opcode, node, request[40:])
        error, body = (0, answer) if isinstance(answer, bytes) else (-answer, b"")
        os.write(device, struct.pack("<IiQ", 16 + len(body), error, unique) + body)


def _answer(opcode: int, node: int, body: bytes) -> bytes | int:
    """Return the body of an answer, or an error number."""
    answers: dict[int, Callable[[], bytes | int]] = {
        _INIT: lambda: struct.pack(
            "<IIIIHHIIHHI7I", 7, 31, 0, 0, 16, 12, 1 << 17, 1, 1, 0, 0, *[0] * 7
        ),
        _LOOKUP: lambda: _found(body.rstrip(b"\0").decode()),
        _GETATTR: lambda: struct.pack("<QII", _HOUR, 0, 0) + _attributes(node),
        _OPEN: lambda: struct.pack("<QII", 0, 0, 0),
        _OPENDIR: lambda: struct.pack("<QII", 0, 0, 0),
        _READ: lambda: CONTENT[struct.unpack_from("<QQ", body)[1] :],
        _STATFS: lambda: struct.pack("<5Q4I6I", *[0] * 5, 4096, 255, 4096, *[0] * 7),
        _FLUSH: lambda: b"",
        _RELEASE: lambda: b"",
        _RELEASEDIR: lambda: b"",
    }
    return answers.get(opcode, lambda: errno.ENOSYS)()


def _found(name: str) -> bytes | int:
    if name != NAME:
        return errno.ENOENT
    return struct.pack("<QQQQII", 2, 0, _HOUR, _HOUR, 0, 0) + _attributes(2)


def _attributes(node: int) -> bytes:
    mode = stat.S_IFDIR | 0o755 if node == 1 else stat.S_IFREG | 0o644
    return struct.pack(
        "<6Q10I",
        node,
        len(CONTENT),
        1,
        1,
        1,
        1,
        0,
        0,
        0,
        mode,
        1,
        os.getuid(),
        os.getgid(),
        0,
        4096,
        0,
    )


if __name__ == "__main__":
    connection = mount(sys.argv[1])
    print("mounted", flush=True)
    serve(connection)
