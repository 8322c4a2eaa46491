"""Every row of the matrix, tried with a real kernel. `make matrix` tries them all and writes docs/state-matrix.md."""

from __future__ import annotations

import pytest
from jupyter_client.provisioning.factory import KernelProvisionerFactory

from tests.matrix import trial
from tests.matrix.rows import ROWS


@pytest.fixture
def environment(module_daemon_env, monkeypatch):
    for name, value in module_daemon_env.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("JUPYTER_DEFAULT_PROVISIONER_NAME", "gpuckpt-provisioner")
    KernelProvisionerFactory.clear_instance()
    yield
    KernelProvisionerFactory.clear_instance()


@pytest.mark.parametrize(
    "row",
    [pytest.param(row, id=row.name, marks=() if row.quick else pytest.mark.slow) for row in ROWS],
)
def test_the_state_works_or_is_refused(row, environment, tmp_path):
    if reason := trial.missing(row):
        trial.keep(trial.Line(row.name, "not run", reason))
        pytest.skip(reason)
    line = trial.attempt(row, tmp_path)
    trial.keep(line)
    assert (line.outcome, line.reason if not row.refused else "") == (
        "refused" if row.refused else "works",
        "",
    )
