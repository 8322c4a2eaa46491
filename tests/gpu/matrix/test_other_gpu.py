"""A kernel whose GPU was filled by another program while it was suspended comes back on the other one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from jupyter_gpuckpt.host import gpu
from tests.gpu.matrix import rows

# Each of them waits until it is alone.
pytestmark = [pytest.mark.gpu, pytest.mark.timeout(900)]

MB = 1 << 20


def taken(before: dict[str, int]) -> Iterator[int]:
    """For each GPU in the driver's order, how much less is free than `before`."""
    now = gpu.free_bytes()
    return (before[device.uuid] - now[device.uuid] for device in gpu.gpus())


def test_it_moves_to_the_other_gpu_and_from_there_again(trial, hog):
    with trial(rows.MOVED, alone=True) as kernel:
        kernel.check()
        first, second, *_ = taken(kernel.free_before)
        assert first > rows.MOVED.gpu_bytes > second
        kernel.do("save")
        kernel.check()
        kernel.do("suspend")
        with hog(leave=400 * MB):
            before_resume = gpu.free_bytes()
            kernel.do("resume")
            kernel.check()
            first, second, *_ = taken(before_resume)
            assert second > rows.MOVED.gpu_bytes > first
        # From there it is taken again, now that both are free.
        kernel.do("suspend")
        kernel.do("resume")
        kernel.check()


def test_two_gpus_are_swapped(trial, hog):
    large, small = rows.SWAPPED.gpu_bytes, 1024 * MB
    with trial(rows.SWAPPED, alone=True) as kernel:
        kernel.check()
        first, second, *_ = taken(kernel.free_before)
        assert first > large > small > second
        kernel.do("save")
        kernel.check()
        kernel.do("suspend")
        with hog(leave=2048 * MB):
            before_resume = gpu.free_bytes()
            kernel.do("resume")
            kernel.check()
            first, second, *_ = taken(before_resume)
            assert second > large > first
        kernel.do("suspend")
        kernel.do("resume")
        kernel.check()
