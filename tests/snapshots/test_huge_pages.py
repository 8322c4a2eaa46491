"""Huge pages (hugetlb) of a program, which Linux gives from a pool of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from jupyter_gpuckpt.errors import HostIncompatible

POOL = Path("/proc/sys/vm/nr_hugepages")
HOLDER = """
    import mmap, os, time
    {huge}
    huge[5 << 20] = 7
    while True:
        print(huge[5 << 20], flush=True)
        time.sleep(0.01)
"""


@pytest.fixture
def pool():
    """Yield the pool with at least 8 pages; skip where it cannot be enlarged."""
    before = POOL.read_text()
    try:
        POOL.write_text(str(int(before) + 8))
    except OSError:
        pytest.skip("the pool of huge pages cannot be enlarged here")
    yield POOL
    POOL.write_text(before)


MEMORY = {
    "private": "huge = mmap.mmap(-1, 8 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x40000)",
    "shared": "huge = mmap.mmap(-1, 8 << 20, mmap.MAP_SHARED | mmap.MAP_ANONYMOUS | 0x40000)",
    "memfd": "fd = os.memfd_create('huge', 4); os.ftruncate(fd, 8 << 20); huge = mmap.mmap(fd, 8 << 20)",
}


@pytest.mark.parametrize("kind", MEMORY)
def test_missing_huge_pages_are_named(run, pool, kind):
    program = run(HOLDER.format(huge=MEMORY[kind]))
    program.lines(more_than=3)
    snapshot = program.save(stop=True).manifest.info.snapshot_id
    pool.write_text("1")
    with pytest.raises(HostIncompatible, match="4 huge pages of 2 MB; 1 can be had") as no:
        program.resume(snapshot)
    assert "nr_hugepages" in no.value.hint
    pool.write_text("8")
    program.resume(snapshot)
    assert program.fresh_line() == "7"
