"""Kills at random moments (`kills.py`)."""

import os
import subprocess

import pytest

from .kills import CONTAINER, kill_at_random, kill_containers


@pytest.mark.slow
def test_a_notebook_ends_as_an_undisturbed_one(module_daemon_env, tmp_path):
    kill_at_random(module_daemon_env, tmp_path, kills=10, seed=5)


@pytest.mark.slow
@pytest.mark.skipif(
    bool(os.geteuid()) or bool(subprocess.run([*CONTAINER, "true"], check=False).returncode),
    reason="namespaces cannot be made here",
)
def test_so_does_one_whose_container_is_killed(module_daemon_env, tmp_path):
    kill_containers(module_daemon_env, tmp_path, kills=10, seed=5)
