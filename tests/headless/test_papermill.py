"""papermill with our engine."""

import json

import nbformat
import pytest

from jupyter_gpuckpt.wire.states import KernelState
from tests.conftest import wait_for

from .running import CELLS, Runner, outputs
from .test_execute import AT_FIRST


class Papermill(Runner):
    """papermill in a process."""

    def words(self):
        return ["-m", "papermill", "--engine", "gpuckpt", str(self.notebook), str(self.output)]


@pytest.mark.slow
def test_papermill_goes_on_with_the_kernel_of_a_papermill_that_was_killed(runner):
    content = nbformat.read(runner.notebook, 4)
    first = nbformat.v4.new_code_cell("factor = 1", id="first")
    first.metadata["tags"] = ["parameters"]
    content.cells = [first, *content.cells]
    content.cells[-1].source = CELLS[-1].replace("total * 2", "total * factor")
    nbformat.write(content, runner.notebook)
    papermill = Papermill(runner.env, runner.notebook, runner.output)
    options = ["-p", "factor", "5", "--autosave-cell-every", "1"]
    papermill.start(*options)
    # papermill writes its output when something comes; the kernel's journal has it at once.
    wait_for(lambda: any(AT_FIRST in path.read_text(errors="ignore") for path in journals(runner)))
    papermill.kill()
    assert len(runner.kernels()) == 1
    runner.open_gate(10)
    runner.open_gate(20)
    status, said = papermill.run(*options)
    total = sum(number * number for number in range(1, 31))
    assert status == 0, said
    assert outputs(runner.output)[-1] == [f"{total}\n", str(5 * total)]
    cells = json.loads(runner.output.read_text())["cells"]
    assert [cell["metadata"]["papermill"]["status"] for cell in cells] == ["completed"] * 5
    assert runner.kernels() == []


@pytest.mark.slow
def test_papermill_suspends_the_kernel_on_sigterm_and_goes_on_with_it(runner):
    papermill = Papermill(runner.env, runner.notebook, runner.output)
    papermill.start()
    wait_for(lambda: any(AT_FIRST in path.read_text(errors="ignore") for path in journals(runner)))
    papermill.process.terminate()
    status, said = papermill.ended()
    assert status == 143, said
    [kernel] = runner.kernels()
    assert kernel.state is KernelState.SUSPENDED
    runner.open_gate(10)
    runner.open_gate(20)
    status, said = papermill.run()
    assert status == 0, said
    total = sum(number * number for number in range(1, 31))
    assert outputs(runner.output)[-1] == [f"{total}\n", str(2 * total)]
    shown = outputs(runner.output)[1][0].splitlines()
    assert [line.split()[0] for line in shown] == [str(number) for number in range(1, 31)]
    assert runner.kernels() == []


def journals(runner):
    """Return the journals of the test's data directory."""
    return runner.data.glob("runs/*/journal")
