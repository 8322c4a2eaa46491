"""Every row of the matrix, tried with a real kernel. `make matrix` tries them all and writes docs/state-matrix.md."""

from __future__ import annotations

import pytest
from jupyter_client.provisioning.factory import KernelProvisionerFactory

from tests.matrix import trial
from tests.matrix.row import Row
from tests.matrix.rows import ROWS


@pytest.fixture
def environment(module_daemon_env, monkeypatch):
    for name, value in module_daemon_env.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("JUPYTER_DEFAULT_PROVISIONER_NAME", "gpuckpt-provisioner")
    KernelProvisionerFactory.clear_instance()
    yield
    KernelProvisionerFactory.clear_instance()


#: Runs a row's code apart from that of the others, as a cell: with `await`.
APART = """
import ast, inspect
spaces = {}
async def apart(name, code):
    space = spaces.setdefault(name, {"__name__": name})
    compiled = compile(code, name, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    if inspect.iscoroutine(waiting := eval(compiled, space)):
        await waiting
"""


def together(rows):
    """Return a row with the states of all these rows."""

    def cells(name):
        return "\n".join(f"await apart({row.name!r}, {getattr(row, name)!r})" for row in rows)

    warned = "|".join(row.warned for row in rows if row.warned)
    begin = APART + cells("begin")
    return Row("together", "All of them", begin=begin, use=cells("use"), warned=warned)


def test_many_states_work_in_one_kernel(environment, tmp_path):
    rows = [row for row in ROWS if row.quick and not row.refused]
    assert len(rows) > 10
    line = trial.attempt(together(rows), tmp_path)
    assert (line.outcome, line.reason) == ("works", "")


@pytest.mark.parametrize(
    "row",
    [
        pytest.param(row, id=row.name, marks=() if row.quick and row.refused else pytest.mark.slow)
        for row in ROWS
    ],
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
