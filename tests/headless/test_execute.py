"""`jupyter gpuckpt execute`: nbclient's semantics, and going on after whatever ended the runner."""

import time
from pathlib import Path

import pytest

from jupyter_gpuckpt.daemon.snapshots.user_deletions import UserDeletions
from jupyter_gpuckpt.remote.remote_list import state_folder
from jupyter_gpuckpt.wire import calls
from jupyter_gpuckpt.wire.remote_records import RemoteVerb
from jupyter_gpuckpt.wire.states import KernelState
from tests.conftest import wait_for
from tests.remote.installations import add_remote, ask

from .running import outputs, write_notebook

TOTAL = sum(number * number for number in range(1, 31))
SHOWN = "".join(f"{n} {sum(m * m for m in range(1, n + 1))}\n" for n in range(1, 31))
#: The outputs of an undisturbed run of `CELLS`; what the two gates are waited at for.
EXPECTED = [[], [SHOWN, str(TOTAL)], [f"{TOTAL}\n", str(2 * TOTAL)]]
AT_FIRST, AT_SECOND = "10 385", "20 2870"
#: A cell's limit, in seconds, that its kernel sleeps through.
LIMIT = 20


def test_the_next_runner_goes_on_with_the_kernel_of_one_that_was_killed(runner):
    runner.start()
    wait_for(lambda: runner.has_shown(AT_FIRST))
    runner.kill()
    runner.open_gate(10)
    runner.open_gate(20)
    kernel = runner.kernels()[0]
    assert kernel.state is KernelState.RUNNING
    status, said = runner.run()
    assert (status, outputs(runner.output)) == (0, EXPECTED), said
    assert runner.kernels() == []


def test_a_run_goes_on_from_its_last_save_after_everything_was_killed(runner, tmp_path):
    add_remote(runner.data, "share", f"file://{tmp_path / 'share'}", automatic=False)
    runner.start("--lose-at-most", "1s")
    wait_for(lambda: runner.has_shown(AT_FIRST) and runner.snapshots())
    runner.open_gate(10)
    wait_for(lambda: runner.has_shown(AT_SECOND))
    runner.kill(daemon=True, kernel=True)
    runner.open_gate(20)
    status, said = runner.run()
    assert (status, outputs(runner.output)) == (0, EXPECTED), said
    # The automatic saves of a run that is over are not kept.
    assert runner.snapshots() == []
    # No user has deleted them, so no remote is told.
    assert UserDeletions(state_folder(runner.data, "share")).all() == {}
    ask(RemoteVerb.REMOVE, runner.data, "share")


@pytest.mark.slow
def test_a_runner_that_lives_goes_on_by_itself_and_counts_the_kernels_clock(runner):
    """The daemon is killed; then somebody else suspends the kernel for longer than its time limit, and resumes it."""
    # Until it is suspended its time runs, and a machine may be busy.
    runner.start("--timeout", f"{LIMIT}s")
    wait_for(lambda: runner.has_shown(AT_FIRST))
    runner.kill(runner=False, daemon=True)
    wait_for(lambda: runner.pids()[0])
    with runner.client() as client:
        kernel_id = runner.kernels()[0].kernel_id
        client.wait(client.send(calls.suspend(kernel_id)).operation_id)
        time.sleep(LIMIT)
        client.wait(client.send(calls.resume(kernel_id)).operation_id)
    runner.open_gate(10)
    runner.open_gate(20)
    status, said = runner.ended()
    assert (status, outputs(runner.output)) == (0, EXPECTED), said


@pytest.mark.slow
def test_a_cell_that_takes_too_long_ends_the_notebook(runner):
    status, said = runner.run("--timeout", "1s")
    assert status == 1
    assert "timed out" in said
    assert AT_FIRST in str(outputs(runner.output))
    assert runner.kernels() == []


@pytest.mark.slow
def test_a_stop_suspends_the_kernel_and_the_next_runner_resumes_it(runner):
    runner.start()
    wait_for(lambda: runner.has_shown(AT_FIRST))
    runner.process.terminate()
    status, said = runner.ended()
    assert status == 130, said
    assert runner.kernels()[0].state is KernelState.SUSPENDED, said
    runner.open_gate(10)
    runner.open_gate(20)
    status, said = runner.run()
    assert (status, outputs(runner.output)) == (0, EXPECTED), said


@pytest.mark.slow
def test_a_snapshot_is_named_by_the_beginning_of_its_id(runner):
    runner.start()
    wait_for(lambda: runner.has_shown(AT_FIRST))
    runner.process.terminate()
    assert runner.ended()[0] == 130
    [snapshot] = runner.snapshots()
    runner.open_gate(10)
    runner.open_gate(20)
    status, said = runner.run("--from", snapshot.snapshot_id[:8])
    assert (status, outputs(runner.output)) == (0, EXPECTED), said


def test_an_error_ends_the_notebook_unless_its_cell_is_tagged(runner):
    cells = ["1 / 0", "print('skipped')", "print('shown')", "int('x')", "print('never')"]
    tags = {0: ["raises-exception"], 1: ["skip-execution"]}
    write_notebook(runner.notebook, cells, tags)
    status, said = runner.run()
    assert status == 1
    assert "ValueError" in said
    assert outputs(runner.output) == [["ZeroDivisionError"], [], ["shown\n"], ["ValueError"], []]
    assert runner.kernels() == []


@pytest.mark.parametrize(
    ("options", "output", "reason"),
    [
        (("--kernel", "no-such-kernel"), "out.ipynb", "There is no kernel no-such-kernel."),
        ((), ".", "is a folder"),
        ((), "/proc/out.ipynb", "No file can be written to the folder /proc"),
    ],
)
def test_what_cannot_work_is_refused_in_words_before_a_kernel_starts(
    runner, options, output, reason
):
    runner.output = Path(output)
    before = runner.pids()[1]
    status, said = runner.run(*options)
    assert status == 2
    assert reason in said
    assert "Traceback" not in said
    assert runner.pids()[1] == before


@pytest.mark.slow
def test_an_output_that_cannot_be_written_at_the_end_costs_no_work(runner):
    runner.start()
    wait_for(lambda: runner.has_shown(AT_FIRST))
    runner.output.unlink()
    runner.output.mkdir()
    runner.open_gate(10)
    runner.open_gate(20)
    status, said = runner.ended()
    assert status == 7, said
    assert "cannot be written: Is a directory." in said
    assert "Traceback" not in said
    runner.output.rmdir()
    status, said = runner.run()
    assert (status, outputs(runner.output)) == (0, EXPECTED), said
