"""Tests of the memory for large buffers: the size of its pages, and its content."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

import pytest

from jupyter_gpuckpt.linux import fresh_memory
from tests import smaps


@pytest.fixture
def device(tmp_path, monkeypatch):
    """Return a function that adds a virtio device, given its kind and the numbers of its features."""
    fresh_memory._host_takes_free_memory.cache_clear()
    monkeypatch.setattr(fresh_memory, "_VIRTIO_DEVICES", tmp_path)

    def make(kind, *features):
        folder = tmp_path / f"virtio{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        (folder / "device").write_text(f"{kind:#06x}\n")
        (folder / "features").write_text("".join("01"[bit in features] for bit in range(64)))

    yield make
    fresh_memory._host_takes_free_memory.cache_clear()


def flags():
    """Return the flags of fresh memory."""
    memory = fresh_memory.fresh_memory(8 << 20)
    return smaps.flags_at(os.getpid(), ctypes.addressof(ctypes.c_char.from_buffer(memory)))


@pytest.mark.skipif(
    not Path("/sys/kernel/mm/transparent_hugepage").exists(), reason="Linux without huge pages"
)
def test_it_may_be_in_huge_pages(device):
    device(2, 1, 5)  # a disk
    device(5, 1, 2)  # a balloon
    assert "hg" in flags()
    # Shared memory has huge pages only where an administrator enabled them.
    assert "sh" not in flags()


def test_it_is_in_small_pages_where_the_host_takes_free_memory_back(device):
    device(2, 1)
    device(5, 1, 2, 5)
    assert "hg" not in flags()
    assert "sh" not in flags()


def test_all_of_it_is_zero_and_can_be_written():
    memory = fresh_memory.fresh_memory(5000)
    assert bytes(memory) == bytes(5000)
    memory[:] = b"x" * 5000
    assert bytes(memory) == b"x" * 5000
