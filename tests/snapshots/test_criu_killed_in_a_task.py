"""CRIU is killed while a task executes its code, at moments spread over the whole dump: the program runs on as it was.

A task that met a breakpoint of CRIU's would be ended by its SIGTRAP (engine/criu/injection.c).
"""

from __future__ import annotations

import subprocess
import sys
from contextlib import suppress

import pytest

from jupyter_gpuckpt.engine.tree import launch
from jupyter_gpuckpt.engine.tree.standstill import Standstill
from jupyter_gpuckpt.errors import FreezeFailed
from jupyter_gpuckpt.host import processes
from tests.snapshots.test_failing_saves import criu_pid

PROGRAM = """
    import signal, threading, time
    trapped = []
    signal.signal(signal.SIGTRAP, lambda *_: trapped.append(1))
    threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
    n = 0
    while True:
        n += 1
        print(n, len(trapped), signal.getsignal(signal.SIGTRAP) != signal.SIG_DFL, flush=True)
        time.sleep(0.01)
"""
#: How many of the moments are tried.
TRIES = 12
NEVER = 1_000_000


def save(program, number: int) -> str:
    """Save the program, with CRIU killed at the moment `number`; what the killer printed.

    The killer begins when all tasks stand still and CRIU waits for our answer.
    """
    killers: list[subprocess.Popen[str]] = []
    begin = Standstill.begin

    def begin_and_trace(standstill: Standstill) -> None:
        begin(standstill)
        pid = criu_pid(program.tree.keeper_nspid)
        words = [sys.executable, "-m", "tests.snapshots.killing_tracer", str(pid), str(number)]
        killers.append(subprocess.Popen(words, stdout=subprocess.PIPE, text=True))
        assert killers[0].stdout is not None
        assert killers[0].stdout.readline() == "ready\n"

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Standstill, "begin", begin_and_trace)
        with suppress(FreezeFailed):
            program.save()
    with killers[0] as killer:
        return killer.communicate()[0].strip()


def test_no_moment_of_criu_s_death_costs_the_program(run) -> None:
    program = run(PROGRAM)
    program.lines(more_than=3)
    descriptors = processes.descriptors(program.tree.kernel_pid)
    moments = int(save(program, NEVER))
    assert moments > 30
    for number in {moments * part // TRIES for part in range(TRIES)}:
        assert save(program, number) == "killed", number
        assert launch.alive(program.tree), number
        assert program.fresh_line().split()[1:] == ["0", "True"], number
        assert processes.descriptors(program.tree.kernel_pid) == descriptors, number
        assert not any("CRIU" in area.path for area in processes.maps(program.tree.kernel_pid))
    program.save(stop=True)
