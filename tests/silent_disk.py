"""A disk that may not answer: a file system whose server tells the facts about a file, but from some moment on not its content."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest

#: A file system with one file whose content nobody gets once a file `silent` exists (man 4 fuse; include/uapi/linux/fuse.h).
SILENT = """
    import ctypes, os, struct, sys
    libc = ctypes.CDLL(None, use_errno=True)
    device = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0".encode()
    if libc.mount(b"silent", sys.argv[1].encode(), b"fuse", 0, options):
        sys.exit(f"not mounted: {os.strerror(ctypes.get_errno())}")
    print("mounted", flush=True)
    def attributes(node):
        mode, size = (0o40755, 0) if node == 1 else (0o100644, 100)
        return struct.pack("<6Q10I", node, size, 1, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)
    while True:
        request = os.read(device, 1 << 20)
        _, kind, unique, node = struct.unpack_from("<IIQQ", request)
        answers = {
            1: lambda: struct.pack("<4Q2I", 2, 0, 60, 60, 0, 0) + attributes(2),
            3: lambda: struct.pack("<Q2I", 60, 0, 0) + attributes(node),
            14: lambda: struct.pack("<Q2I", 0, 1, 0),
            17: lambda: struct.pack("<5Q4I", 100, 50, 50, 9, 9, 4096, 255, 4096, 0) + bytes(24),
            26: lambda: struct.pack("<4I2H6I", 7, 31, 65536, 0, 0, 0, 65536, *[0] * 5) + bytes(20),
        }
        if kind in answers:
            body = answers[kind]()
            os.write(device, struct.pack("<IiQ", 16 + len(body), 0, unique) + body)
        elif kind == 15 and os.path.exists(sys.argv[2]):
            print("asked", flush=True)  # and there is no answer
        elif kind == 15:
            os.write(device, struct.pack("<IiQ", 116, 0, unique) + b"x" * 100)
        elif kind != 2:
            os.write(device, struct.pack("<IiQ", 16, -38, unique))
"""


@contextmanager
def silent_disk(folder: Path, silent: Path) -> Iterator[tuple[Path, IO[str]]]:
    """Mount the file system; yield the path of its file, and a stream with a line for each attempt to read it that is not answered."""
    folder.mkdir()
    server = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(SILENT), folder, silent],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert server.stdout is not None
    if server.stdout.readline() != "mounted\n":
        server.wait()
        pytest.skip("FUSE cannot be used here")
    try:
        yield folder / "data", server.stdout
    finally:
        server.kill()
        server.wait()
        subprocess.run(["umount", "--lazy", folder], check=False)
        server.stdout.close()
