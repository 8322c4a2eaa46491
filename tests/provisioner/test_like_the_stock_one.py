"""To Jupyter, a kernel under the engine behaves like one of the local provisioner: the same test for both."""

import asyncio
import os
import secrets
import signal
import socket
from contextlib import suppress

import psutil
import pytest
from gpuckpt_provisioner import GpuCkptProvisioner

from tests.provisioner.conftest import TIMEOUT

pytestmark = pytest.mark.usefixtures("provisioner_name")


@pytest.fixture
def daemon_env(module_daemon_env):
    """Return the environment of one daemon for all these tests, which look at their own kernel only."""
    return dict(module_daemon_env)


def test_the_provisioner_is_the_one_that_was_asked_for(with_kernel, provisioner_name):
    async def body(kernel):
        managed = isinstance(kernel.provisioner, GpuCkptProvisioner) and kernel.provisioner.kernel
        assert bool(managed) == (provisioner_name == "gpuckpt-provisioner")
        assert kernel.provisioner.has_process
        assert await kernel.provisioner.poll() is None

    with_kernel(body)


def test_output_comes_in_order(with_kernel):
    async def body(kernel):
        code = "import sys\nfor i in range(200): print(i); print(-i, file=sys.stderr)\n'end'"
        reply, texts = await kernel.run(code)
        assert reply["status"] == "ok"
        printed = "".join(text for name, text in texts if name == "stdout")
        assert printed.split() == [str(i) for i in range(200)]
        assert texts[-1] == ("result", "'end'")

    with_kernel(body)


def test_an_interrupt_stops_a_cell_and_keeps_the_kernel(with_kernel, tmp_path):
    sign = tmp_path / "running"

    async def body(kernel):
        await kernel.run("x = 41")
        cell = f"import pathlib, time\npathlib.Path({str(sign)!r}).touch()\ntime.sleep(1000)"
        running = asyncio.ensure_future(kernel.run(cell))
        await kernel.until(sign.exists)
        await kernel.manager.interrupt_kernel()
        reply, _ = await asyncio.wait_for(running, TIMEOUT)
        assert reply["ename"] == "KeyboardInterrupt"
        assert await kernel.printed("print(x + 1)") == "42\n"

    with_kernel(body)


def test_an_interrupt_reaches_what_a_cell_runs_in_the_foreground(with_kernel, tmp_path):
    sign = tmp_path / "running"

    async def body(kernel):
        cell = f"%%bash\ntouch {sign}\nsleep 1000\necho not reached"
        running = asyncio.ensure_future(kernel.run(cell))
        await kernel.until(sign.exists)
        await kernel.manager.interrupt_kernel()
        _, texts = await asyncio.wait_for(running, TIMEOUT)
        assert "not reached" not in "".join(text for _, text in texts)
        assert await kernel.printed("print('alive')") == "alive\n"

    with_kernel(body)


def test_bash_cells_and_shell_lines_run(with_kernel):
    async def body(kernel):
        assert await kernel.printed("%%bash\necho one; echo $((1+1))") == "one\n2\n"
        assert "three" in await kernel.printed("!echo three")

    with_kernel(body)


@pytest.mark.parametrize(
    "start",
    [
        pytest.param("import os; os.system('{command} &')", marks=pytest.mark.slow),
        "!nohup {command} > /dev/null 2>&1 & sleep 0.3",
        pytest.param("%%bash --bg\n{command}", marks=pytest.mark.slow),
        "import subprocess; server = subprocess.Popen('{command}'.split())",
    ],
    ids=["os.system", "shell-line", "bash-bg", "popen"],
)
def test_a_background_process_outlives_its_cell(with_kernel, start):
    async def body(kernel):
        command = f"sleep {secrets.randbelow(10**6) + 10**6}"
        count = (
            f"import subprocess\nprint(subprocess.run(['pgrep', '-cf', '^{command}'], "
            "stdout=-1, text=True).stdout.strip())"
        )
        await kernel.run(start.format(command=command))
        async with asyncio.timeout(TIMEOUT):
            while await kernel.printed(count) != "1\n":  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        await kernel.run("")
        assert await kernel.printed(count) == "1\n"
        await kernel.run(f"!pkill -f '^{command}'")

    with_kernel(body)


def test_input_asks_the_client(with_kernel):
    async def body(kernel):
        def answer(message):
            assert message["content"]["prompt"] == "name? "
            kernel.client.input("Ada")

        reply, texts = await kernel.run(
            "print('hello', input('name? '))", allow_stdin=True, stdin_hook=answer
        )
        assert reply["status"] == "ok"
        assert ("stdout", "hello Ada\n") in texts

    with_kernel(body)


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("import os; os._exit(7)", 7),
        pytest.param("import os; os._exit(0)", 0, marks=pytest.mark.slow),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
        pytest.param(
            "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
            -signal.SIGTERM,
            marks=pytest.mark.slow,
        ),
        ("import ctypes; ctypes.string_at(0)", -signal.SIGSEGV),
    ],
)
def test_the_exit_code_is_told(with_kernel, code, expected):
    async def body(kernel):
        kernel.client.execute(code)
        assert await kernel.exit_code() == expected
        assert not await kernel.manager.is_alive()
        assert await kernel.provisioner.wait() == expected
        assert not kernel.provisioner.has_process

    with_kernel(body)


def test_a_kernel_killed_from_outside_is_noticed(with_kernel):
    async def body(kernel):
        os.kill(kernel.provisioner.pid, signal.SIGKILL)
        assert await kernel.exit_code() == -signal.SIGKILL

    with_kernel(body)


@pytest.mark.parametrize("now", [False, True])
def test_a_shutdown_ends_the_process_and_removes_the_connection_file(with_kernel, now):
    async def body(kernel):
        pid, path = kernel.provisioner.pid, kernel.manager.connection_file
        assert os.path.exists(path)  # noqa: ASYNC240
        async with asyncio.timeout(TIMEOUT):
            await kernel.manager.shutdown_kernel(now=now)
        assert not psutil.pid_exists(pid)
        assert not os.path.exists(path)  # noqa: ASYNC240
        assert not kernel.manager.has_kernel

    with_kernel(body)


@pytest.mark.parametrize("now", [False, True])
def test_a_restart_gives_an_empty_kernel_on_the_same_connection(with_kernel, now):
    async def body(kernel):
        await kernel.run("x = 1")
        pid, ports = kernel.provisioner.pid, kernel.manager.ports
        await kernel.manager.restart_kernel(now=now)
        await kernel.client.wait_for_ready(timeout=TIMEOUT)
        assert kernel.manager.ports == ports
        assert kernel.provisioner.pid != pid
        assert await kernel.printed("print('x' in globals())") == "False\n"
        assert await kernel.provisioner.poll() is None

    with_kernel(body)


def test_a_restart_after_a_crash_works(with_kernel):
    async def body(kernel):
        kernel.client.execute("import os; os._exit(3)")
        assert await kernel.exit_code() == 3
        await kernel.manager.restart_kernel(now=True)
        await kernel.client.wait_for_ready(timeout=TIMEOUT)
        assert await kernel.printed("print(1)") == "1\n"

    with_kernel(body)


def test_the_kernel_has_the_directory_and_the_environment_it_was_given(with_kernel, tmp_path):
    async def body(kernel):
        code = "import os; print(os.getcwd(), os.environ['SAID'], oct(os.umask(0o27)))"
        assert await kernel.printed(code) == f"{tmp_path} so 0o27\n"

    before = os.umask(0o027)
    try:
        with_kernel(body, cwd=str(tmp_path), env={**os.environ, "SAID": "so"})
    finally:
        os.umask(before)


def test_a_program_that_does_not_exist_is_an_error_of_the_start(with_kernel):
    async def body(kernel):
        await kernel.manager.shutdown_kernel(now=True)
        kernel.manager.kernel_spec.argv = ["no-such-program", "{connection_file}"]
        with pytest.raises(FileNotFoundError):
            await kernel.manager.start_kernel()

    with_kernel(body)


def test_a_directory_that_does_not_exist_is_an_error_of_the_start(with_kernel, tmp_path):
    async def body(kernel):
        await kernel.manager.shutdown_kernel(now=True)
        with pytest.raises(OSError):  # noqa: PT011 - the message is Python's or ours
            await kernel.manager.start_kernel(cwd=str(tmp_path / "gone"))

    with_kernel(body)


def test_the_ports_of_a_kernel_are_nobody_elses_before_it_listens(
    with_kernel, provisioner_name, monkeypatch
):
    """Try to bind the kernel's ports after their choice and before its start, as another program might."""
    if provisioner_name == "local-provisioner":
        pytest.skip("this is a difference")
    got = []
    launched = GpuCkptProvisioner._launch

    def launch(provisioner, *arguments, **options):
        for port in provisioner._ports.numbers:
            with socket.socket() as other, suppress(OSError):
                other.bind(("127.0.0.1", port))
                got.append(port)
        return launched(provisioner, *arguments, **options)

    monkeypatch.setattr(GpuCkptProvisioner, "_launch", launch)

    async def body(kernel):
        ports = set(kernel.provisioner._ports.numbers)
        assert len(ports) == 5
        assert await kernel.printed("print(1)") == "1\n"
        await kernel.manager.restart_kernel(now=True)
        await kernel.client.wait_for_ready(timeout=TIMEOUT)
        assert set(kernel.provisioner._ports.numbers) == ports
        assert not kernel.provisioner._ports._held._sockets, "the daemon holds them now"

    with_kernel(body)
    assert got == []
