"""The label of a snapshot says after which cell it was taken, and nothing that a kernel says keeps a save from it."""

from types import SimpleNamespace

import pytest

from jupyter_gpuckpt.kernel_agent.history import last_cell
from jupyter_gpuckpt.server.kernels.agent_calls import _cell


@pytest.mark.parametrize(
    ("count", "sources", "cell"),
    [
        (1, [""], 0),
        (3, ["", "a", "b", "c"], 3),  # IPython 9 in its third cell
        (3, ["", "a", "b"], 2),  # after the second one
        (0, [], 0),
        (-5, ["", "a"], 0),
        ("a user's", [], 0),
    ],
)
def test_the_last_cell_that_has_begun_is_found(count, sources, cell):
    manager = SimpleNamespace(input_hist_raw=sources)
    assert last_cell(SimpleNamespace(execution_count=count, history_manager=manager)) == cell


def test_a_shell_without_history_has_no_last_cell():
    assert last_cell(SimpleNamespace(execution_count=0)) == 0
    assert last_cell(object()) == 0


@pytest.mark.parametrize(
    ("found", "cell"), [(7, 7), (-1, 0), (1 << 40, 0), ("7", 0), (None, 0), (7.0, 0)]
)
def test_a_kernel_that_claims_an_impossible_cell_is_not_believed(found, cell):
    assert _cell(found) == cell
