"""No write escapes the tracking: a program changes its memory at random, and all of it is compared at every save.

The rounds are those of saves: stop, list, protect, ghost, run on. What the tracking believes unwritten must be equal in two ghosts.
"""

import contextlib
import os
import random
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

from jupyter_gpuckpt.engine.criu.images import PAGE, Extent
from jupyter_gpuckpt.engine.memory.ghost import Ghost
from jupyter_gpuckpt.engine.memory.reader import ProcessMemory, unforked_areas
from jupyter_gpuckpt.engine.memory.write_tracking import WriteTracking, inside, shared_with
from jupyter_gpuckpt.host import pagemap_scan, processes
from tests.conftest import wait_for

KEEPER = """
    import ctypes, os, subprocess, sys
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
    child = subprocess.Popen(sys.argv[1:])
    print(child.pid, file=sys.stderr, flush=True)
    while True:
        try:
            pid, status = os.wait()
            if pid == child.pid:
                print('ended with', os.waitstatus_to_exitcode(status), file=sys.stderr, flush=True)
        except ChildProcessError:
            break
"""
FACTORS = np.random.default_rng(1).integers(1, 1 << 63, PAGE // 8, np.uint64) | np.uint64(1)


class Writer:
    """The program, and what its ghosts had."""

    def __init__(self, stack, program, seed, folder):
        self.keeper = stack.enter_context(
            subprocess.Popen(
                [sys.executable, "-c", textwrap.dedent(KEEPER), program, str(seed), folder],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
        stack.callback(self.end)
        self.pid = int(self.keeper.stderr.readline())
        slots, pinned, ring = self.keeper.stdout.readline().split()
        self.pinned, self.has_ring = int(pinned, 16), int(ring) >= 0
        self.believed, self.compared = 0, 0

    def end(self):
        for pid in (*processes.children(self.keeper.pid), self.keeper.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def run_on(self, lines):
        for _ in range(lines):
            assert self.keeper.stdout.readline(), "the program has ended"

    def stop(self):
        if not processes.alive(self.pid): raise AssertionError(self.keeper.stderr.readline())
        os.kill(self.pid, signal.SIGSTOP)
        wait_for(
            lambda: all(processes.state(tid) == "T" for tid in processes.threads(self.pid)),
        )

    def go_on(self):
        os.kill(self.pid, signal.SIGCONT)


class Saves:
    """Saves of the program; `before`: the addresses, contents and known pages of the last one."""

    def __init__(self, writer, *, trusts_pinned=False):
        self.writer, self.trusts_pinned = writer, trusts_pinned
        self.tracking = None
        self.pages = np.empty(0, np.int64)
        self.hashes = np.empty(0, np.uint64)
        self.known = np.empty(0, np.bool_)
        self.believed = self.all = 0

    def save(self):
        """Save once; return the addresses of pages that were believed and had changed."""
        writer = self.writer
        writer.stop()
        if self.tracking is None:
            self.tracking = WriteTracking(writer.pid)
        unwritten = self.tracking.unwritten()
        extents = own_pages(writer.pid)
        self.tracking.protect()
        memory = ProcessMemory("", writer.pid, extents)
        memory.keep(unforked_areas(writer.pid))
        with Ghost(writer.pid) as ghost:
            still = self.tracking.unwritten()
            writer.go_on()
            pages = addresses(extents)
            known = shared_with(ghost.pid, pages)
            hashes = hashed(memory.of(ghost.pid))
        believed = inside(pages, unwritten) & inside(pages, still)
        at = np.minimum(np.searchsorted(self.pages, pages), max(len(self.pages) - 1, 0))
        if len(self.pages):
            believed &= self.pages[at] == pages
            believed &= self.known[at] | self.trusts_pinned
        else:
            believed[:] = False
        self.believed += np.count_nonzero(believed)
        self.all += len(pages)
        missed = pages[believed][hashes[believed] != self.hashes[at[believed]]]
        self.pages, self.hashes, self.known = pages, hashes, known
        return missed


def own_pages(pid):
    with Path(f"/proc/{pid}/pagemap").open("rb") as pagemap:
        return [
            Extent(start, end - start, lazy=True)
            for area in processes.maps(pid)
            if area.private and not area.path.startswith("[v")
            for start, end in pagemap_scan.own_pages(pagemap.fileno(), area.start, area.end)
        ]


def addresses(extents):
    parts = [np.arange(e.address, e.address + e.length, PAGE, np.int64) for e in extents]
    return np.concatenate(parts)


def hashed(memory):
    found, piece = [], 1 << 22
    for offset in range(0, memory.length, piece):
        buffer = bytearray(min(piece, memory.length - offset))
        memory.read_into(offset, memoryview(buffer))
        found.append(np.frombuffer(buffer, np.uint64).reshape(-1, PAGE // 8) @ FACTORS)
    return np.concatenate(found)


@pytest.fixture(scope="session")
def program(tmp_path_factory):
    source = Path(__file__).with_name("memory_writer.c")
    target = tmp_path_factory.mktemp("memory-writer") / "memory-writer"
    subprocess.run(["gcc", "-O1", "-pthread", "-o", target, source], check=True)
    return target


def rounds(program, folder, seed, count):
    chance = random.Random(seed)
    with contextlib.ExitStack() as stack:
        writer = Writer(stack, program, seed, str(folder))
        saves = Saves(writer)
        for number in range(count):
            writer.run_on(chance.randrange(1, 12))
            missed = saves.save()
            assert not len(missed), (
                f"seed {seed}, save {number}: {len(missed)} writes were missed, the first at {missed[0]:x}"
            )
        saves.tracking.close()
    assert saves.believed > saves.all // 10, "nothing was shown"
    return saves


def test_no_write_is_missed(program, tmp_path):
    rounds(program, tmp_path, seed=random.randrange(1 << 32), count=30)


if __name__ == "__main__":
    import tempfile
    import time

    end = time.monotonic() + float(sys.argv[2])
    seed = int(sys.argv[3]) if len(sys.argv) > 3 else random.randrange(1 << 32)
    total = believed = saves = 0
    while time.monotonic() < end:
        with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
            found = rounds(sys.argv[1], folder, seed, 40)
        total, believed, saves = total + found.all, believed + found.believed, saves + 40
        seed += 1
    print(f"{saves} saves, {total} pages, {believed} believed, 0 missed")
