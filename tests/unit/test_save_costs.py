"""How often kernels are saved periodically."""

import pytest

from jupyter_gpuckpt.client.save_costs import DEFAULT_SECONDS, SaveCost


def test_by_default_a_run_is_saved_as_often_as_its_cost_permits():
    assert SaveCost().pause_seconds(None) == DEFAULT_SECONDS
    assert SaveCost(2.0, 0.2, 4.0).pause_seconds(None) == DEFAULT_SECONDS
    assert SaveCost(60.0, 0.2, 40.0).pause_seconds(None) == 800.0
    # A kernel stands still for a hundredth of the time at most.
    assert SaveCost(60.0, 9.0, 1.0).pause_seconds(None) == pytest.approx(900)


def test_what_a_user_wants_is_done_at_any_cost():
    assert SaveCost(60.0, 9.0, 40.0).pause_seconds(1.0) == 1.0


def test_the_pause_between_saves_follows_from_their_cost():
    assert SaveCost().least_seconds(0.05) == 0
    assert SaveCost(5.0, 0.1, 4.0).least_seconds(0.05) == pytest.approx(80)
    assert SaveCost(5.0, 2.0, 4.0).least_seconds(0.05) == pytest.approx(200)
