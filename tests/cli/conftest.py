"""The command as people and programs use it, and kernels without a Jupyter server."""

import contextlib
import io
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from jupyter_gpuckpt.cli import app
from tests.programs import run_command

#: Starts a kernel with the provisioner, prints its id, then answers every line with what it is worth.
KERNEL = """
import sys
from jupyter_client.manager import start_new_kernel
manager, client = start_new_kernel(startup_timeout=180)
print(manager.kernel_id, flush=True)
for line in sys.stdin:
    # The reply alone: right after a resume the channel of outputs may not be connected yet.
    reply = client.execute("", user_expressions={"it": line}, reply=True, timeout=180)
    print(reply["content"]["user_expressions"]["it"]["data"]["text/plain"], flush=True)
client.stop_channels()
manager.shutdown_kernel(now=True)
"""


class Kernel:
    """A kernel and the program that talks to it."""

    def __init__(self, env, python=sys.executable):
        env = env | {"JUPYTER_DEFAULT_PROVISIONER_NAME": "gpuckpt-provisioner"}
        self._program = subprocess.Popen(
            [python, "-c", KERNEL],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=env,
            text=True,
        )
        self.id = self._program.stdout.readline().strip()
        assert self.id

    def worth(self, expression):
        self._program.stdin.write(f"{expression}\n")
        self._program.stdin.flush()
        return self._program.stdout.readline().strip()

    def kill(self):
        """End the program as the machine's memory killer would."""
        self._program.kill()
        self._program.wait()

    def end(self):
        self._program.stdin.close()
        self._program.wait(180)
        self._program.stdout.close()


@pytest.fixture
def gpuckpt_program(daemon_env):
    """Return a function that runs the command as a program of its own."""
    return partial(run_command, daemon_env)


@pytest.fixture
def gpuckpt(daemon_env):
    """Return a function that runs the command with an empty stdin and without a terminal.

    The command runs in this process, because a program's start takes ten times as long as most commands.
    """

    def run(*words, status=0):
        printed, said = (io.TextIOWrapper(io.BytesIO(), "utf-8") for _ in range(2))
        with (
            pytest.MonkeyPatch.context() as patched,
            open(os.devnull) as nothing,
            contextlib.redirect_stdout(printed),
            contextlib.redirect_stderr(said),
        ):
            for name in set(os.environ) - set(daemon_env):
                patched.delenv(name)
            for name, value in daemon_env.items():
                patched.setenv(name, value)
            patched.setattr(sys, "stdin", nothing)
            found = app.main(words)
        output = []
        for stream in (printed, said):
            stream.flush()
            output.append(stream.buffer.getvalue().decode())
        assert found == status, "".join(output)
        return subprocess.CompletedProcess(words, found, *output)

    return run


@pytest.fixture
def gpuckpt_json(gpuckpt):
    """Run the command with --json and give its document; nothing else may be on stdout or stderr."""

    def run(*words, status=0):
        done = gpuckpt(*words, "--json", status=status)
        assert done.stderr == ""
        return json.loads(done.stdout)

    return run


@pytest.fixture
def kernels(daemon_env):
    """Start kernels beside each other."""
    with contextlib.ExitStack() as stack:

        def start(count):
            with ThreadPoolExecutor(count) as pool:
                made = list(pool.map(lambda _: Kernel(daemon_env), range(count)))
            for kernel in made:
                stack.callback(kernel.end)
            return made

        yield start


@pytest.fixture
def kernel(daemon_env):
    started = Kernel(daemon_env)
    yield started
    started.end()
