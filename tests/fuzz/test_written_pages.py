"""No write escapes the tracking: a program changes its memory at random, and all of it is compared at every save.

The rounds are those of saves: stop, list, protect, ghost, run on. What the tracking believes unwritten must be equal in two ghosts.
"""

import contextlib
import os
import random
import shutil
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
from jupyter_gpuckpt.engine.memory.tracked_kernels import addresses
from jupyter_gpuckpt.engine.memory.write_tracking import (
    WriteTracking,
    inside,
    is_supported,
    shared_with,
)
from jupyter_gpuckpt.host import pagemap_scan, processes
from tests.conftest import wait_for

pytestmark = [
    pytest.mark.skipif(not is_supported(), reason="this Linux cannot tell what was written"),
    pytest.mark.skipif(not shutil.which("gcc"), reason="gcc is not here"),
]
#: The share of saves before which the daemon restarts, and the size of the program's pinned memory.
RESTARTS, PINNED_BYTES = 0.05, 64 * PAGE

# A subreaper that reaps any child, as the engine's keeper does.
KEEPER = """
    import ctypes, os, subprocess, sys
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
    child = subprocess.Popen(sys.argv[1:])
    print(child.pid, file=sys.stderr, flush=True)
    while True:
        try:
            pid, status = os.wait()
        except ChildProcessError:
            break
        if pid == child.pid:
            print('it ended with', os.waitstatus_to_exitcode(status), file=sys.stderr, flush=True)
"""
#: By these a page becomes a number: two pages with the same number differ with a probability of 1 in 2**63.
FACTORS = np.random.default_rng(1).integers(1, 1 << 63, PAGE // 8, np.uint64) | np.uint64(1)


class Writer:
    """The program; `pinned`: the address of memory to which Linux writes without a fault, 0 where there is no io_uring."""

    def __init__(self, stack, program, seed, folder):
        self._keeper = stack.enter_context(
            subprocess.Popen(
                [sys.executable, "-c", textwrap.dedent(KEEPER), program, str(seed), folder],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
        stack.callback(self._end)
        self.pid = int(self._keeper.stderr.readline())
        _, pinned, ring = self._keeper.stdout.readline().split()
        self.pinned = int(pinned, 16) if int(ring) >= 0 else 0

    def _end(self):
        for pid in (*processes.children(self._keeper.pid), self._keeper.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def run_on(self, lines):
        for _ in range(lines):
            if not self._keeper.stdout.readline():
                raise AssertionError(self._keeper.stderr.readline())

    def stop(self):
        os.kill(self.pid, signal.SIGSTOP)
        wait_for(lambda: {processes.state(tid) for tid in processes.threads(self.pid)} == {"T"})

    def go_on(self):
        os.kill(self.pid, signal.SIGCONT)


class Saves:
    """Saves of the program, as the engine makes them. The last one had `pages`, by their addresses, with these numbers."""

    def __init__(self, writer, *, trusts_pinned=False):
        self.writer, self._trusts_pinned = writer, trusts_pinned
        self.tracking = None
        self.pages, self._numbers = np.empty(0, np.int64), np.empty(0, np.uint64)
        self._known = np.empty(0, np.bool_)
        self.all = self.believed = 0

    def save(self, *, restarts=False):
        """Save once, as a daemon that has just started does if it `restarts`; return the pages that had changed unseen."""
        self.writer.stop()
        if restarts or self.tracking is None:
            self.close()
            self.tracking = WriteTracking(self.writer.pid)
        extents = own_pages(self.writer.pid)
        before = self.tracking.protect()
        memory = ProcessMemory("", self.writer.pid, extents)
        memory.keep(unforked_areas(self.writer.pid))
        with Ghost(self.writer.pid) as ghost:
            after = self.tracking.still_unwritten()
            self.writer.go_on()
            pages = addresses(extents)
            known = shared_with(ghost.pid, pages)
            numbers = numbered(memory.of(ghost.pid))
        believed = inside(pages, before) & inside(pages, after)
        if len(self.pages):
            at = np.minimum(np.searchsorted(self.pages, pages), len(self.pages) - 1)
            believed &= (self.pages[at] == pages) & (self._known[at] | self._trusts_pinned)
            missed = pages[believed][numbers[believed] != self._numbers[at[believed]]]
        else:
            assert not believed.any()
            missed = pages[:0]
        self.believed += np.count_nonzero(believed)
        self.all += len(pages)
        self.pages, self._numbers, self._known = pages, numbers, known
        return missed

    def close(self):
        if self.tracking is not None:
            self.tracking.close()


def own_pages(pid):
    with Path(f"/proc/{pid}/pagemap").open("rb") as pagemap:
        return [
            Extent(start, end - start, lazy=True)
            for area in processes.maps(pid)
            if area.private and not area.path.startswith("[v")  # Linux's own
            for start, end in pagemap_scan.own_pages(pagemap.fileno(), area.start, area.end)
        ]


def numbered(memory):
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


@contextlib.contextmanager
def saved_program(program, folder, seed, **options):
    with contextlib.ExitStack() as stack:
        saves = Saves(Writer(stack, program, seed, str(folder)), **options)
        stack.callback(saves.close)
        yield saves


def check(program, folder, seed, rounds):
    chance = random.Random(seed)
    with saved_program(program, folder, seed) as saves:
        for number in range(rounds):
            saves.writer.run_on(chance.randrange(1, 12))
            missed = saves.save(restarts=chance.random() < RESTARTS)
            assert not len(missed), (
                f"seed {seed}, save {number}: {len(missed)} missed, first {missed[0]:x}"
            )
    assert saves.believed > saves.all // 10, "hardly any page was believed unwritten"


def test_no_write_is_missed(program, tmp_path):
    check(program, tmp_path, random.randrange(1 << 32), rounds=20)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("number", range(20))
def test_no_write_is_missed_for_long(program, tmp_path, number):
    check(program, tmp_path, random.randrange(1 << 32), rounds=200)


def test_writes_to_pinned_pages_are_seen_only_by_the_ghost(program, tmp_path):
    """What must be true for the rule about pinned pages to be needed, and for these tests to be able to fail."""
    with saved_program(program, tmp_path, seed=3, trusts_pinned=True) as saves:
        if not saves.writer.pinned:
            pytest.skip("io_uring is not available")
        missed = np.empty(0, np.int64)
        while not len(missed):
            saves.writer.run_on(5)
            missed = saves.save()
    assert ((missed >= saves.writer.pinned) & (missed < saves.writer.pinned + PINNED_BYTES)).all()


if __name__ == "__main__":
    # The program, the folder for its files, the first seed, and how many seeds: for a long search by hand.
    for seed in range(int(sys.argv[3]), int(sys.argv[3]) + int(sys.argv[4])):
        check(sys.argv[1], sys.argv[2], seed, rounds=40)
        print(seed, flush=True)
