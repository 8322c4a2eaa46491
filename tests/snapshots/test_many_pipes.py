"""A user whose pipes take all the room that Linux gives to a user's pipes: kernels with pipes are saved and come back."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from msgspec.structs import replace

from jupyter_gpuckpt.errors import FreezeFailed

pytestmark = pytest.mark.skipif(os.geteuid() == 0, reason="Linux does not bound root's pipes")

F_SETPIPE_SZ, F_GETPIPE_SZ, PAGE = 1031, 1032, 4096
PROGRAM = """
    import os, time
    empty, filled = os.pipe(), os.pipe()
    os.write(filled[1], b"x" * {length})
    n = 0
    while True:
        n += 1
        os.write(empty[1], b"y")
        print(n, os.read(empty[0], 10), flush=True)
        if os.path.exists("read"):
            print(len(os.read(filled[0], 1 << 20)), flush=True)
            os.unlink("read")
        time.sleep(0.01)
"""


@pytest.fixture
def no_room() -> Iterator[None]:
    """All pages that this user's pipes may have are taken."""
    most = int(Path("/proc/sys/fs/pipe-user-pages-soft").read_text())
    largest = int(Path("/proc/sys/fs/pipe-max-size").read_text())
    with ExitStack() as stack:
        for _ in range(most * PAGE // largest + 1):
            ends = os.pipe()
            for end in ends:
                stack.callback(os.close, end)
            try:
                fcntl.fcntl(ends[1], F_SETPIPE_SZ, largest)
            except PermissionError:
                break
        while fcntl.fcntl(ends[1], F_GETPIPE_SZ) >= 16 * PAGE:
            ends = os.pipe()
            for end in ends:
                stack.callback(os.close, end)
        yield


def test_pipes_with_little_in_them_come_back(request, run) -> None:
    program = run(PROGRAM.format(length=1000))
    program.lines(more_than=3)
    request.getfixturevalue("no_room")
    program.save()
    suspended = program.save(stop=True)
    count = len(program.lines())
    program.resume(suspended.manifest.info.snapshot_id)
    assert program.lines(more_than=count + 1)[-1].endswith("b'y'")
    (program.log.parent / "read").touch()
    while "1000" not in (lines := program.lines(more_than=count)):
        count = len(lines)


def test_a_full_pipe_is_refused_and_the_program_runs_on(request, run) -> None:
    program = run(PROGRAM.format(length=60_000))
    program.lines(more_than=3)
    request.getfixturevalue("no_room")
    with pytest.raises(FreezeFailed, match="take all the memory"):
        program.save(stop=True)
    assert program.fresh_line().endswith("b'y'")


def test_changed_pages_of_a_mapped_file_need_no_pipes(request, run, engine, tmp_path) -> None:
    """Programs with large libraries have many such pages, and two fit into a pipe."""
    limited = tmp_path / "criu"
    limited.write_text(f'#!/bin/sh\nulimit -n 8192\nexec {engine.criu} "$@"\n')
    limited.chmod(0o755)
    program = run(
        """
        import mmap, os, time
        file = os.memfd_create("file")
        os.truncate(file, 64 << 20)
        memory = mmap.mmap(file, 64 << 20, flags=mmap.MAP_PRIVATE)
        memory[:] = bytes(range(256)) * (256 << 10)
        while True:
            print(memory[:] == bytes(range(256)) * (256 << 10), flush=True)
            time.sleep(0.05)
        """,
        engine=replace(engine, criu=limited),
    )
    program.lines()
    request.getfixturevalue("no_room")
    suspended = program.save(stop=True)
    count = len(program.lines())
    program.resume(suspended.manifest.info.snapshot_id)
    assert set(program.lines(more_than=count)[count:]) == {"True"}
