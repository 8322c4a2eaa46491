"""Calls of the agent in a kernel's main thread: while a cell runs there, and while the thread is only late."""

import asyncio
import threading
import time

import pytest
from tornado.ioloop import IOLoop

from jupyter_gpuckpt.kernel_agent import control_calls


class Caller(threading.Thread):
    """A control thread that asks the main thread's event loop for a call, and what it got."""

    def __init__(self, loop):
        super().__init__()
        self._loop, self.ran, self.called = loop, [], None

    def run(self):
        work = control_calls.between_cells(self._loop, lambda: self.ran.append(True) or 42, 300)
        self.called = asyncio.run(work)


@pytest.fixture
def in_main_thread():
    """Return a function that begins a call, works in the main thread, and then lets its event loop run to the call's end."""

    def run(work):
        async def main():
            caller = Caller(IOLoop.current())
            caller.start()
            work(caller)
            await asyncio.to_thread(caller.join)
            return caller

        return asyncio.run(main())

    return run


def test_a_main_thread_that_is_late_is_waited_for(in_main_thread, monkeypatch):
    monkeypatch.setattr(control_calls, "_IDLE_SECONDS", 120)
    caller = in_main_thread(lambda caller: time.sleep(4 * control_calls._BEGIN_SECONDS))
    assert control_calls.result_of(caller.called) == 42


def test_a_main_thread_that_runs_a_cell_is_not(in_main_thread, monkeypatch):
    monkeypatch.setattr(control_calls, "_IDLE_SECONDS", 120)

    def do_execute(caller):
        caller.join(100)

    caller = in_main_thread(do_execute)
    assert (caller.called, caller.ran) == (None, [])


def test_nor_one_that_never_comes(in_main_thread):
    caller = in_main_thread(lambda caller: caller.join(100))
    assert (caller.called, caller.ran) == (None, [])
