"""The rows that work: saved while they go on, suspended and resumed twice, and all as in a twin that was never stopped."""

from __future__ import annotations

import pytest

from tests.conftest import wait_for
from tests.gpu.matrix import rows

# One server serves all rows; a row's kernel sees as many as the row says.
pytestmark = [pytest.mark.gpu, pytest.mark.several_gpus]


@pytest.mark.parametrize("row", rows.WORKS, ids=lambda row: row.name)
def test_it_comes_back_twice_as_if_it_had_never_been_stopped(trial, row):
    with trial(row) as kernel:
        kernel.check()
        kernel.do("save")
        kernel.check()
        for _ in range(2):
            kernel.do("suspend")
            kernel.do("resume")
            kernel.check()


def test_a_training_loop_is_suspended_while_it_runs_and_learns_the_same(trial, tmp_path):
    count, stop = tmp_path / "count", tmp_path / "stop"
    count.write_bytes(b"%08d" % 0)
    with trial(rows.TRAINING_LOOP, looks=1) as kernel:
        kernel.check_tokens()
        cell = kernel.page.execute(f"running.work.train({str(count)!r}, {str(stop)!r})")

        def goes_on():
            before = int(count.read_bytes())
            wait_for(lambda: int(count.read_bytes()) > before + 3, 60)

        goes_on()
        kernel.do("save")
        goes_on()
        for _ in range(2):
            kernel.do("suspend")
            kernel.do("resume")
            goes_on()
        stop.touch()
        kernel.ended(cell)
        kernel.check_tokens()
        losses = kernel.cell("print('\\n'.join(running.work.losses))").split()
        expected = kernel.twin[0]["work"]
        assert len(losses) == int(count.read_bytes()) < len(expected), "it ran all the time"
        assert losses == expected[: len(losses)]


@pytest.mark.parametrize("row", rows.PARKED, ids=lambda row: row.name)
def test_it_is_parked_twice_and_the_next_cell_finds_everything(trial, row):
    with trial(row) as kernel:
        for _ in range(2):
            kernel.check()
            kernel.do("park")
            assert kernel.state() == "parked"
        kernel.check()
        # What is parked can be suspended, too.
        kernel.do("park")
        kernel.do("suspend")
        kernel.do("resume")
        kernel.check()
