"""The rows that are refused: both times with the reason, and the kernel computes on, on CPU and GPU."""

from __future__ import annotations

import pytest

from tests.gpu.matrix import rows

# One server serves all rows; a row's kernel sees as many as the row says.
pytestmark = [pytest.mark.gpu, pytest.mark.several_gpus]


@pytest.mark.parametrize("row", rows.REFUSED, ids=lambda row: row.name)
def test_it_is_refused_and_computes_on(trial, row):
    with trial(row, looks=3) as kernel:
        kernel.check()
        for verb in ("save", "suspend"):
            kernel.refuse(verb)
            kernel.check()
        assert kernel.snapshots() == []
