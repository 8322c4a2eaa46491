"""Programs that run notebooks without a server: nbclient, papermill, jupyter console; and the end of such programs."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import nbformat
import pexpect
import psutil
import pytest
from gpuckpt_provisioner import GpuCkptProvisioner
from jupyter_client.manager import start_new_kernel
from traitlets.config import Config

from jupyter_gpuckpt.client import Client
from jupyter_gpuckpt.wire import calls
from jupyter_gpuckpt.wire.states import KernelState
from tests.blocking_clients import printed

CELLS = ["x = 20", "import os; print(os.environ.get('JPY_PARENT_PID'), x + 1)"]


@pytest.fixture
def alone():
    """Say that a test needs a daemon of its own: it is started in another way, or all that it has written is looked at."""


@pytest.fixture
def daemon_env(request, daemon_env, module_daemon_env):
    """Return the environment of one daemon for all tests but those that are `alone`: each leaves it without kernels."""
    return daemon_env if "alone" in request.fixturenames else dict(module_daemon_env)


@pytest.fixture
def notebook(tmp_path):
    path = tmp_path / "notebook.ipynb"
    cells = [nbformat.v4.new_code_cell(source) for source in CELLS]
    metadata = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=metadata), path)
    return path


def output_of(path):
    """Return the last cell's output. Ours is the only provisioner that tells kernels not to watch their parent."""
    return json.loads(path.read_text())["cells"][-1]["outputs"][0]["text"]


def run(env, *words):
    return subprocess.run(
        [sys.executable, *words], env=env, capture_output=True, text=True, timeout=400, check=False
    )


def wait_until(condition, seconds=120):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)


def kernels():
    with Client.connect() as client:
        return client.send(calls.kernels())


def test_nbclient_runs_a_notebook(notebook, ours):
    done = run(ours, "-m", "nbclient", "--inplace", str(notebook))
    if done.returncode and "No module named nbclient.__main__" in done.stderr:
        code = "from nbclient.cli import main; main()"
        done = run(ours, "-c", code, "--inplace", str(notebook))
    assert done.returncode == 0, done.stderr
    assert output_of(notebook) == ["1 21\n"]
    assert kernels() == []


@pytest.mark.slow
def test_nbclient_tells_the_error_of_a_cell_and_leaves_no_kernel(notebook, ours):
    content = nbformat.read(notebook, 4)
    content.cells[0].source = "1 / 0"
    nbformat.write(content, notebook)
    done = run(ours, "-c", "from nbclient.cli import main; main()", str(notebook))
    assert done.returncode != 0
    assert "ZeroDivisionError" in done.stderr
    assert kernels() == []


def test_papermill_runs_a_notebook(notebook, ours):
    result = notebook.with_name("result.ipynb")
    done = run(ours, "-m", "papermill", str(notebook), str(result), "-p", "x", "30")
    assert done.returncode == 0, done.stderr
    assert output_of(result)[-1].startswith("1 21")
    assert kernels() == []


@pytest.mark.slow  # it waits half a minute
def test_papermill_says_that_the_daemon_does_not_answer_and_runs_a_notebook(ours, notebook, alone):
    with Client.connect() as client:
        pid = client.send(calls.handshake()).pid
    os.kill(pid, signal.SIGSTOP)
    try:
        result = notebook.with_name("result.ipynb")
        done = run(ours, "-m", "papermill", str(notebook), str(result))
    finally:
        os.kill(pid, signal.SIGCONT)
    assert done.returncode == 0, done.stderr
    assert "gpuckptd does not answer" in done.stderr
    assert output_of(result)[-1].endswith(" 21\n")
    assert kernels() == []


def test_the_console_runs_lines_and_ends(ours):
    console = pexpect.spawn(
        sys.executable,
        ["-m", "jupyter_console", "--simple-prompt"],
        env={**ours, "TERM": "dumb"},
        encoding="utf-8",
        timeout=180,
    )
    try:
        console.expect("In \\[1\\]")
        # The console does not wait until it is subscribed: what it runs before that shows nothing.
        for number in range(2, 30):
            console.sendline("6 * 7")
            if console.expect(["42", f"In \\[{number}\\]"]) == 0:
                console.expect(f"In \\[{number}\\]")
                break
            time.sleep(1)
        else:
            pytest.fail("nothing is shown")
        assert len(kernels()) == 1
        console.sendline("exit")
        console.expect(pexpect.EOF)
    finally:
        console.close(force=True)
    wait_until(lambda: kernels() == [])


SCRIPT = """
import sys
from jupyter_client.manager import start_new_kernel
manager, client = start_new_kernel(startup_timeout=180)
print(manager.provisioner.pid, flush=True)
sys.stdin.read()
"""


# A script that does not catch SIGTERM can do as little before its end as one that is killed.
@pytest.mark.parametrize(
    "how", [pytest.param(signal.SIGTERM, marks=pytest.mark.slow), signal.SIGKILL]
)
def test_a_script_that_dies_takes_its_kernel_with_it(ours, how):
    script = subprocess.Popen(
        [sys.executable, "-c", SCRIPT], env=ours, stdin=-1, stdout=-1, text=True
    )
    with script:
        pid = int(script.stdout.readline())
        assert psutil.pid_exists(pid)
        script.send_signal(how)
        script.wait(120)
        psutil.wait_procs([psutil.Process(pid)] if psutil.pid_exists(pid) else [], timeout=120)
    assert not psutil.pid_exists(pid)
    wait_until(lambda: kernels() == [])


def test_a_killed_papermill_leaves_no_kernel(notebook, ours, tmp_path):
    content = nbformat.read(notebook, 4)
    content.cells[0].source = "import time; open('running', 'w').close(); time.sleep(1000)"
    nbformat.write(content, notebook)
    command = [sys.executable, "-m", "papermill", notebook.name, "out.ipynb"]
    with subprocess.Popen(
        command, cwd=tmp_path, env=ours, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as script:
        wait_until((tmp_path / "running").exists)
        [kernel] = kernels()
        assert psutil.pid_exists(kernel.pid)
        script.kill()
        script.wait(120)
    wait_until(lambda: not psutil.pid_exists(kernel.pid))
    wait_until(lambda: kernels() == [])


@pytest.fixture
def held_criu(alone, ours, short_dir, monkeypatch):
    """Make CRIU's dumps wait as long as the returned file exists."""
    hold, program = short_dir / "hold", short_dir / "criu"
    program.write_text(
        "#!/bin/sh\n"
        f'case "$1" in dump) while [ -e {hold} ]; do sleep 0.05; done;; esac\n'
        f'exec {ours["JUPYTER_GPUCKPT_CRIU"]} "$@"\n'
    )
    program.chmod(0o755)
    ours["JUPYTER_GPUCKPT_CRIU"] = str(program)
    monkeypatch.setenv("JUPYTER_GPUCKPT_CRIU", str(program))
    return hold


@pytest.mark.slow
def test_a_papermill_that_is_killed_while_its_kernel_is_suspended_costs_nothing(
    notebook, ours, held_criu, tmp_path
):
    """A batch system's hook suspends all, then the system kills the job."""
    content = nbformat.read(notebook, 4)
    content.cells[0].source = (
        "import time\n"
        "for count in range(100_000):\n"
        "    print(count, file=open('count', 'w'))\n"
        "    time.sleep(0.01)"
    )
    nbformat.write(content, notebook)
    command = [sys.executable, "-m", "jupyter_gpuckpt.cli"]
    papermill = [sys.executable, "-m", "papermill", notebook.name, "out.ipynb"]
    count = tmp_path / "count"
    with subprocess.Popen(papermill, cwd=tmp_path, env=ours, stdout=-3, stderr=-3) as script:
        wait_until(lambda: count.exists() and count.read_text())
        [kernel] = kernels()
        held_criu.touch()
        words = ["suspend", "--all", "--within", "400s", "--json"]
        suspend = subprocess.Popen([*command, *words], env=ours, stdout=-1, text=True)
        wait_until(lambda: kernels()[0].state is KernelState.SUSPENDING)
        script.kill()
    log = Path(ours["JUPYTER_GPUCKPT_DATA_DIR"], "log", "gpuckptd.log")
    wait_until(lambda: "is gone; killing its 1 kernel" in log.read_text())
    assert [one.state for one in kernels()] == [KernelState.SUSPENDING]
    held_criu.unlink()
    report = json.loads(suspend.communicate(timeout=300)[0])
    assert [(one["kernel_id"], one["saved"]) for one in report["kernels"]] == [
        (kernel.kernel_id, True)
    ]
    wait_until(lambda: kernels() == [])
    listed = run(ours, *command[1:], "list", "--json")
    [snapshot] = json.loads(listed.stdout)["snapshots"]
    reached = int(count.read_text() or 0)
    assert not psutil.pid_exists(kernel.pid)
    resumed = run(ours, *command[1:], "resume", snapshot["snapshot_id"])
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    wait_until(lambda: int(count.read_text() or 0) > reached)
    [back] = kernels()
    assert (back.kernel_id, back.state) == (kernel.kernel_id, KernelState.RUNNING)


def test_a_kernel_lives_on_while_its_daemon_is_replaced(with_kernel, ours):
    async def body(kernel):
        with Client.connect() as client:
            os.kill(client.send(calls.handshake()).pid, signal.SIGKILL)
        assert await kernel.printed("print('alive')") == "alive\n"
        assert await kernel.provisioner.poll() is None
        async with asyncio.timeout(120):
            while not await asyncio.to_thread(kernels):  # noqa: ASYNC110
                await asyncio.sleep(0.2)
        kernel.client.execute("import os; os._exit(5)")
        assert await kernel.exit_code() == 5

    with_kernel(body)


def test_an_interrupt_does_not_wait_for_the_daemon(with_kernel, ours, tmp_path):
    sign = tmp_path / "running"

    async def body(kernel):
        with Client.connect() as client:
            daemon = client.send(calls.handshake()).pid
        cell = f"import time; open({str(sign)!r}, 'w').close(); time.sleep(1000)"
        running = asyncio.ensure_future(kernel.run(cell))
        async with asyncio.timeout(120):
            while not sign.exists():  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        os.kill(daemon, signal.SIGSTOP)
        try:
            await kernel.manager.interrupt_kernel()
            reply, _ = await asyncio.wait_for(running, 120)
        finally:
            os.kill(daemon, signal.SIGCONT)
        assert reply["ename"] == "KeyboardInterrupt"

    with_kernel(body)


@pytest.mark.usefixtures("alone")
def test_the_kernels_own_output_goes_to_its_log(with_kernel, ours):
    async def body(kernel):
        logs = list(Path(ours["JUPYTER_GPUCKPT_DATA_DIR"], "log", "kernels").iterdir())  # noqa: ASYNC240
        assert [log.name for log in logs] == [f"{kernel.manager.kernel_id}.log"]
        assert logs[0].stat().st_mode & 0o777 == 0o600

    with_kernel(body)


@pytest.mark.usefixtures("alone")
def test_without_an_engine_kernels_start_plainly_and_that_is_said_once(tmp_path, environment):
    env = {**environment, "JUPYTER_DEFAULT_PROVISIONER_NAME": "gpuckpt-provisioner"}
    env["JUPYTER_GPUCKPT_CRIU"] = "/no/such/criu"
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent("""
        import logging
        logging.basicConfig()
        from jupyter_client.manager import start_new_kernel
        for _ in range(2):
            manager, client = start_new_kernel(startup_timeout=180)
            print(client.execute_interactive("", timeout=180)["content"]["status"],
                  bool(manager.provisioner.plain_reason), manager.provisioner.kernel)
            client.stop_channels()
            manager.shutdown_kernel()
        """)
    )
    done = run(env, str(script))
    assert done.stdout == "ok True None\n" * 2, done.stderr
    assert done.stderr.count("Kernels start without jupyter-gpuckpt") == 1
    assert "criu" in done.stderr


def test_the_class_is_what_the_entry_point_names(with_kernel, ours):
    async def body(kernel):
        assert type(kernel.provisioner) is GpuCkptProvisioner

    with_kernel(body)


def test_files_that_the_settings_choose_travel_with_snapshots(ours, with_kernel, tmp_path):
    (tmp_path / "data.csv").write_text("1,2")

    async def body(kernel):
        await kernel.printed("held = open('data.csv')")
        kernel_id = kernel.manager.provisioner.kernel_id
        with Client.connect() as client:
            done = client.wait(client.send(calls.save(kernel_id)).operation_id)
            return client.send(calls.manifest_summary(done.snapshot_id))["kept_files"]

    settings = Config({"GpuCkptProvisioner": {"keep_files": ["*.csv", "nothing"]}})
    kept = with_kernel(body, settings=settings, cwd=str(tmp_path))
    assert kept == [str(tmp_path / "data.csv")]


def test_a_blocking_client_gets_all_output_of_its_first_cell_after_a_resume(ours):
    manager, client = start_new_kernel(startup_timeout=180)
    try:
        assert printed(client, "x = 41; print(x)") == "41\n"
        has_agent = "print('gpuckpt_request' in get_ipython().kernel.control_handlers)"
        wait_until(lambda: printed(client, has_agent) == "True\n")
        for expected in ("42\n", "43\n"):
            with Client.connect() as daemon:
                [kernel] = daemon.send(calls.kernels())
                daemon.wait(daemon.send(calls.suspend(kernel.kernel_id)).operation_id)
                daemon.wait(daemon.send(calls.resume(kernel.kernel_id)).operation_id)
            assert printed(client, "x += 1; print(x)") == expected
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
