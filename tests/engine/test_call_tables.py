"""Tables of system calls that stopped threads execute: every call, in every thread, and nothing else changes."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys

import pytest

from jupyter_gpuckpt.engine.injection import ptrace
from jupyter_gpuckpt.engine.injection.call_tables import Call, CallTables, Table
from jupyter_gpuckpt.engine.injection.threads_held import ThreadsHeld
from jupyter_gpuckpt.host import processes
from tests.conftest import wait_for

PROGRAM = """
import signal, sys, threading, time
signal.signal(signal.SIGUSR1, lambda *_: print("caught", flush=True))
for _ in range(3):
    threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
print("ready", flush=True)
for line in sys.stdin:
    print(threading.active_count(), flush=True)
"""
GETPID, GETTID, PRCTL, SET_TIMER_SLACK, GET_TIMER_SLACK = 39, 186, 157, 29, 30


@pytest.fixture
def program():
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "ready\n"
        yield process
        process.kill()


def still_works(program):
    program.stdin.write("\n")
    program.stdin.flush()
    return program.stdout.readline() == "4\n"


def run(tables, tracee, *calls):
    table = Table(calls)
    return table.results(tables.run(tracee, (tracee.pid, tracee.tid), table))


def ask(program, *calls):
    with ThreadsHeld(program.pid) as held, CallTables(held.tracee()) as tables:
        return {tracee.tid: run(tables, tracee, *calls) for tracee in held.tracees()}


def test_every_thread_makes_the_calls(program):
    written = Call(PRCTL, (2, 0), 1, b"\xff" * 4)  # the death signal, into memory
    found = ask(program, Call(GETPID), Call(GETTID), Call(PRCTL, (-1,)), written)
    assert len(found) == 4
    for tid, results in found.items():
        values = [result.value for result in results]
        assert values == [program.pid, tid, -errno.EINVAL, 0]
        assert results[-1].data == bytes(4)
    assert still_works(program)


def test_what_a_thread_sets_stays(program):
    ask(program, Call(PRCTL, (SET_TIMER_SLACK, 54321)))
    results = ask(program, Call(PRCTL, (GET_TIMER_SLACK,))).values()
    assert [one.value for (one,) in results] == [54321] * 4


def test_signals_that_come_meanwhile_are_delivered_afterwards(program):
    with ThreadsHeld(program.pid) as held, CallTables(held.tracee()) as tables:
        os.kill(program.pid, signal.SIGUSR1)
        for tracee in held.tracees():
            run(tables, tracee, Call(GETPID))
    # Python's handler runs in the main thread, which may sleep until it gets a line.
    program.stdin.write("\n")
    program.stdin.flush()
    assert {program.stdout.readline() for _ in range(2)} == {"caught\n", "4\n"}
    assert still_works(program)


def test_a_stop_that_comes_meanwhile_is_not_lost(program):
    with ThreadsHeld(program.pid) as held, CallTables(held.tracee()) as tables:
        os.kill(program.pid, signal.SIGSTOP)
        for tracee in held.tracees():
            [own] = run(tables, tracee, Call(GETTID))
            assert own.value == tracee.tid
    wait_for(lambda: all(processes.state(tid) == "T" for tid in processes.threads(program.pid)))
    os.kill(program.pid, signal.SIGCONT)
    assert still_works(program)


def test_the_memory_is_as_before(program):
    with ThreadsHeld(program.pid) as held:
        with CallTables(held.tracee()) as tables:
            address = tables._address
            before = tables._before
            stack = held.tracee().read(registers(held).rsp - 512, 512)
            run(tables, held.tracee(), Call(GETPID))
            assert held.tracee().read(address, len(before)) != before
        assert held.tracee().read(address, len(before)) == before
        assert held.tracee().read(registers(held).rsp - 512, 512) == stack
    assert still_works(program)


def registers(held):
    return ptrace.registers(held.tracee().tid)
