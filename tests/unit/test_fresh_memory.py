"""Memory for large buffers, as Linux sees it."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest

from jupyter_gpuckpt.fresh_memory import fresh_memory


def flags_at(address):
    """Return the flags of the area of memory that begins at this address or contains it (man proc_pid_smaps)."""
    found = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        head, _, rest = line.partition(" ")
        if not head.endswith(":"):
            start, _, end = head.partition("-")
            found = int(start, 16) <= address < int(end, 16)
        elif found and head == "VmFlags:":
            return rest.split()
    raise AssertionError(f"nothing is mapped at {address:#x}")


@pytest.mark.skipif(
    not Path("/sys/kernel/mm/transparent_hugepage").exists(), reason="Linux without huge pages"
)
def test_it_may_be_in_huge_pages():
    memory = fresh_memory(8 << 20)
    flags = flags_at(ctypes.addressof(ctypes.c_char.from_buffer(memory)))
    assert "hg" in flags
    assert (
        "sh" not in flags
    )  # shared memory has huge pages only where an administrator enabled them


def test_all_of_it_is_zero_and_can_be_written():
    memory = fresh_memory(5000)
    assert bytes(memory) == bytes(5000)
    memory[:] = b"x" * 5000
    assert bytes(memory) == b"x" * 5000
