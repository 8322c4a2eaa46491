"""A kernel whose agent does not answer is saved, and nobody waits for an answer that does not come."""

import asyncio
import os
import signal
import time
from pathlib import Path

import pytest
from jupyter_server.services.kernels.kernelmanager import ServerKernelManager

from jupyter_gpuckpt.host import processes
from jupyter_gpuckpt.server.kernels import agent_calls
from tests.conftest import processes_naming, wait_for

#: Python's lock is held in a call of C's, until the test writes into a pipe.
HOLDING = """
import ctypes, os
os.mkfifo("pipe")
print(ctypes.PyDLL(None).read(os.open("pipe", os.O_RDWR), ctypes.create_string_buffer(1), 1))
"""
#: For two saves: with each question that is not answered and waited for they took 90, on a machine that did nothing else.
SECONDS = 80.0


@pytest.fixture
def server(clean_server):
    return clean_server


def test_a_kernel_whose_cell_holds_pythons_lock_is_saved_like_another(server):
    page = server.open()
    request = page.execute(HOLDING)
    pipe = server.root / "pipe"
    wait_for(pipe.exists)
    began = time.monotonic()
    server.do("save", page.kernel_id)
    server.do("save", page.kernel_id)
    assert time.monotonic() - began < SECONDS
    pipe.write_text("x")
    assert page.output(request) == "1\n"
    assert page.run("print(2)") == "2\n"


def test_a_kernel_that_stood_still_when_it_was_told_to_speak_is_told_again(server, monkeypatch):
    """As after the end of a daemon that was killed in a save: the next one lets the kernel run on."""
    monkeypatch.setattr(agent_calls, "_ANSWER_SECONDS", 120)
    page = server.open()
    page.run("pass")
    connection_file = Path(server.env["JUPYTER_RUNTIME_DIR"], f"kernel-{page.kernel_id}.json")
    named = [pid for pid in processes_naming(connection_file) if processes.name(pid) == "python"]
    tries = []

    def wanted():
        tries.append(True)
        if len(tries) == 15:  # a closed socket has given up by then (LINGER: 1 s)
            os.kill(named[0], signal.SIGCONT)
            monkeypatch.setattr(agent_calls, "_ANSWER_SECONDS", 120)
        return True

    async def stand_still():
        manager = ServerKernelManager()
        manager.load_connection_file(str(connection_file))
        assert await agent_calls.prepare(manager) is not None
        os.kill(named[0], signal.SIGSTOP)
        wait_for(lambda: processes.state(named[0]) == "T")
        monkeypatch.setattr(agent_calls, "_ANSWER_SECONDS", 0.1)
        monkeypatch.setattr(agent_calls, "_SILENCE_SECONDS", 300)
        told = await agent_calls.flush(manager, wanted)
        manager.context.destroy(linger=0)
        return told

    assert asyncio.run(stand_still())
    assert page.run("print(1)") == "1\n"
