"""Where userfaultfd is not allowed kernels come back all the same. A seccomp filter refuses it here, as that of a container does."""

import ctypes
import struct
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from jupyter_gpuckpt.engine.settings import EngineSettings
from jupyter_gpuckpt.errors import ThawFailed
from jupyter_gpuckpt.host.attempts import CALLS

HOLDS_MEMORY = """
    import hashlib, mmap, os, time
    kept = [os.urandom(50_000) + bytes(50_000) for _ in range(300)]
    holes = mmap.mmap(-1, 64 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    holes[40 << 20 : 41 << 20] = os.urandom(1 << 20)
    shared = mmap.mmap(-1, 1 << 20)
    shared[:5] = b"hello"
    child = os.fork()
    if not child:
        kept.append(b"of the child")
    while True:
        digest = hashlib.sha256(b"".join(kept) + holes[:] + shared[:]).hexdigest()
        print("parent" if child else "child", digest, flush=True)
        time.sleep(0.05)
"""
_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 22, 2
_EPERM = 1


def refuse_userfaultfd() -> None:
    """From now on this thread, and what it starts, has no userfaultfd (man seccomp; linux/filter.h)."""
    load, equal, give = 0x20, 0x15, 0x06
    program = b"".join(
        struct.pack("=HBBI", *instruction)
        for instruction in (
            (load, 0, 0, 0),  # the number of the call
            (equal, 0, 1, CALLS["userfaultfd"]),
            (give, 0, 0, 0x00050000 | _EPERM),
            (give, 0, 0, 0x7FFF0000),
        )
    )
    instructions = ctypes.create_string_buffer(program)
    header = struct.pack("@HP", len(program) // 8, ctypes.addressof(instructions))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.c_char_p(header), 0, 0):
        pytest.skip("a seccomp filter cannot be set here")


def refused_userfaultfd(work: Callable[[], Any]) -> None:
    """Do it in a thread without userfaultfd."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            refuse_userfaultfd()
            work()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]


def said(program, after: int) -> dict[str, str]:
    """The last words of parent and child after so many lines, when both have said something."""
    count = after
    while True:
        lines = program.lines(more_than=count)
        words = dict(line.split() for line in lines[after:])
        if len(words) == 2:
            return words
        count = len(lines)


def test_memory_comes_back_without_userfaultfd(run, engine: EngineSettings) -> None:
    program = run(HOLDS_MEMORY)
    before = said(program, 0)
    refused_userfaultfd(lambda: program.save(stop=True))
    (info,) = program.store.snapshots()
    assert program.store.manifest(info.snapshot_id).method == "skeleton"
    count, snapshot_id = len(program.lines()), info.snapshot_id
    with pytest.raises(ThawFailed):
        refused_userfaultfd(lambda: program.resume(snapshot_id))
    program.engine = replace(engine, userfaultfd=False)
    refused_userfaultfd(lambda: program.resume(snapshot_id))
    assert said(program, count) == before
    assert not list(engine.spill_dir.glob("*"))
