"""A kernel whose GPU was filled by another program while it was suspended comes back on the other one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import pytest

from jupyter_gpuckpt.host import gpu
from tests.gpu.matrix import rows
from tests.gpu.matrix.rows import Row
from tests.gpu.matrix.trial import Trial

# Each of them waits until it is alone.
pytestmark = [pytest.mark.gpu, pytest.mark.several_gpus, pytest.mark.timeout(900)]

MB = 1 << 20


def taken(before: dict[str, int]) -> Iterator[int]:
    """For each GPU in the driver's order, how much less is free than `before`."""
    now = gpu.free_bytes()
    return (before[device.uuid] - now[device.uuid] for device in gpu.gpus())


def exchange(
    trial: Callable[..., AbstractContextManager[Trial]],
    row: Row,
    room: AbstractContextManager[None],
    *,
    more_than: int,
    less_than: int,
) -> None:
    """While there is only so much `room` on the first GPU, a resume exchanges what the row has on it and on the second.

    Before that it has `more_than` so many bytes on the first and `less_than` so many on the second.
    """
    with trial(row, alone=True) as kernel:
        kernel.check()
        first, second, *_ = taken(kernel.free_before)
        assert first > more_than >= less_than > second
        kernel.do("save")
        kernel.check()
        kernel.do("suspend")
        with room:
            before_resume = gpu.free_bytes()
            kernel.do("resume")
            kernel.check()
            first, second, *_ = taken(before_resume)
            assert second > more_than >= less_than > first
        # From there it is taken again, now that both are free.
        kernel.do("suspend")
        kernel.do("resume")
        kernel.check()


def test_it_moves_to_the_other_gpu_and_from_there_again(trial, hog):
    size = rows.MOVED.gpu_bytes
    exchange(trial, rows.MOVED, hog(leave=400 * MB), more_than=size, less_than=size)


def test_two_gpus_are_swapped(trial, hog):
    size = rows.SWAPPED.gpu_bytes
    exchange(trial, rows.SWAPPED, hog(leave=2048 * MB), more_than=size, less_than=1024 * MB)
