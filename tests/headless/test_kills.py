"""Kills at random moments (`kills.py`)."""

import pytest

from .kills import kill_at_random


@pytest.mark.slow
def test_a_notebook_ends_as_an_undisturbed_one(module_daemon_env, tmp_path):
    kill_at_random(module_daemon_env, tmp_path, kills=10, seed=5)
