"""Sessions in Python: the examples of the documentation, and what they do to a real kernel."""

import re
from pathlib import Path

import pytest
from jupyter_client.blocking import BlockingKernelClient
from jupyter_client.manager import start_new_kernel
from jupyter_client.provisioning.factory import KernelProvisionerFactory

from jupyter_gpuckpt.errors import FilesChanged, KernelNotFound
from jupyter_gpuckpt.sessions import KernelState, Sessions

PAGE = Path(__file__).parents[2] / "docs" / "python.md"
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)


@pytest.fixture(scope="module")
def kernel(module_daemon_env):
    """Yield the id of a kernel of this process, and a function that runs code in it and returns what it printed."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in module_daemon_env.items():
            patch.setenv(name, value)
        patch.setenv("JUPYTER_DEFAULT_PROVISIONER_NAME", "gpuckpt-provisioner")
        # An earlier test of this process may have made the factory, which reads the variable only once.
        KernelProvisionerFactory.clear_instance()
        manager, client = start_new_kernel(
            startup_timeout=120,
            # Without it IPython may say that its history goes on under another number.
            extra_arguments=["--HistoryManager.enabled=False"],
        )
        yield manager.kernel_id, lambda code: printed(client, code)
        client.stop_channels()
        manager.shutdown_kernel(now=True)
        manager.context.destroy(linger=0)
        KernelProvisionerFactory.clear_instance()


def printed(client, code):
    client.wait_for_ready(timeout=60)  # its connections end with a suspend
    texts = []
    client.execute_interactive(
        code,
        output_hook=lambda message: texts.append(message["content"].get("text", "")),
        timeout=60,
    )
    return "".join(texts)


def test_a_kernel_goes_back_and_gets_a_branch(kernel):
    kernel_id, run = kernel
    with Sessions() as sessions:
        run("x = 1")
        saved = sessions.save(kernel_id, title="one")
        run("x = 2")
        assert sessions.roll_back(saved.snapshot_id).state is KernelState.RUNNING
        assert run("print(x)") == "1\n"
        titles = {one.title: one for one in sessions.snapshots(kernel_id)}
        assert titles["one"].snapshot_id == saved.snapshot_id
        branch = sessions.branch(saved.snapshot_id)
        beside = BlockingKernelClient(connection_file=str(branch.connection_file))
        beside.load_connection_file()
        beside.start_channels()
        assert printed(beside, "x += 10; print(x)") == "11\n"
        beside.stop_channels()
        assert run("print(x)") == "1\n"
        sessions.suspend(branch.kernel.kernel_id)
        with pytest.raises(TimeoutError):
            sessions.wait(branch.kernel.kernel_id, {KernelState.RUNNING}, seconds=0)
        with pytest.raises(KernelNotFound):
            sessions.save("no such kernel")


INSIDE = """
import subprocess, sys
from jupyter_gpuckpt.errors import ConfigurationError
from jupyter_gpuckpt.sessions import Sessions
try:
    Sessions()
except ConfigurationError as error:
    print(error, error.hint)
done = subprocess.run([sys.executable, "-m", "jupyter_gpuckpt.cli", "ps"], capture_output=True, text=True)
print(done.returncode, done.stderr)
"""


def test_files_that_changed_are_refused_or_told(kernel, tmp_path):
    kernel_id, run = kernel
    file = tmp_path / "array"
    file.write_bytes(b"\1" * 100_000)
    run(f"import numpy as np; array = np.memmap({str(file)!r}, mode='r')")
    with Sessions() as sessions:
        sessions.suspend(kernel_id)
        file.write_bytes(b"\1" * 10)
        with pytest.raises(FilesChanged, match=str(file)):
            sessions.resume(kernel_id)
        with pytest.warns(UserWarning, match=str(file)):
            sessions.resume(kernel_id, force=True)
        assert run("print(array[0]); del array") == "1\n"


def test_in_a_kernel_neither_sessions_nor_commands_pretend_that_there_are_no_kernels(kernel):
    _, run = kernel
    with Sessions() as sessions:
        for one in sessions.list():
            sessions.resume(one.kernel_id)
    said = run(INSIDE)
    refusal = "This program runs in a kernel that can be saved, where the daemon cannot be reached."
    assert said.count(refusal) == 2, said
    assert "%load_ext jupyter_gpuckpt" in said
    assert "\n2 " in said


@pytest.mark.parametrize("example", EXAMPLES, ids=["sync", "async"])
def test_an_example_of_the_documentation_runs(kernel, example):
    _, run = kernel
    with Sessions() as sessions:
        for one in sessions.list():
            sessions.resume(one.kernel_id)
        run("y = 5")
        exec(compile(example, PAGE, "exec"), {})
        assert {one.state for one in sessions.list()} == {KernelState.RUNNING}
    assert run("print(y)") == "5\n"
