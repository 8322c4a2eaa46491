"""Clocks, timers and signals."""

from tests.matrix.row import Row

CHAPTER = "Time and signals"
ROWS = [
    Row(
        "clock-monotonic",
        "time.monotonic() goes on where it stopped",
        """
import time
last = time.monotonic()
""",
        """
now = time.monotonic()
assert 0 <= now - last < 600
last = now
""",
    ),
    Row(
        "timer-thread",
        "threading.Timer that is to fire",
        """
import threading
fired = threading.Event()
timer = threading.Timer(2, fired.set)
timer.start()
""",
        """
assert fired.wait(100)
fired = threading.Event()
timer = threading.Timer(2, fired.set)
timer.start()
""",
    ),
    Row(
        "itimer",
        "An interval timer (signal.setitimer)",
        """
import signal, time
alarms = 0
def count(*_):
    global alarms
    alarms += 1
signal.signal(signal.SIGALRM, count)
signal.setitimer(signal.ITIMER_REAL, 0.02, 0.02)
""",
        """
before = alarms
deadline = time.monotonic() + 120
while alarms < before + 3:
    assert time.monotonic() < deadline
assert signal.getitimer(signal.ITIMER_REAL)[1] == 0.02
""",
    ),
    Row(
        "posix-timer",
        "A POSIX timer (timer_create)",
        """
import ctypes, signal, struct, time
alarms = 0
def count(*_):
    global alarms
    alarms += 1
signal.signal(signal.SIGUSR2, count)
libc = ctypes.CDLL(None, use_errno=True)
event = struct.pack("Qii48x", 0, signal.SIGUSR2, 0)
timer = ctypes.c_void_p()
assert libc.timer_create(1, event, ctypes.byref(timer)) == 0
assert libc.timer_settime(timer, 0, struct.pack("qqqq", 0, 20_000_000, 0, 20_000_000), None) == 0
""",
        """
before = alarms
deadline = time.monotonic() + 120
while alarms < before + 3:
    assert time.monotonic() < deadline
""",
    ),
    Row(
        "timerfd",
        "A periodic timerfd that is read",
        """
import ctypes, os, select, struct
libc = ctypes.CDLL(None, use_errno=True)
d = libc.timerfd_create(1, os.O_NONBLOCK)
assert libc.timerfd_settime(d, 0, struct.pack("qqqq", 0, 20_000_000, 0, 20_000_000), None) == 0
""",
        """
for _ in range(3):
    assert select.select([d], [], [], 100)[0]
    os.read(d, 8)
""",
    ),
    Row(
        "timerfd-unread",
        "A periodic timerfd that has expired and was not read",
        """
import ctypes, os, select, struct
libc = ctypes.CDLL(None, use_errno=True)
d = libc.timerfd_create(1, os.O_NONBLOCK)
assert libc.timerfd_settime(d, 0, struct.pack("qqqq", 0, 20_000_000, 0, 20_000_000), None) == 0
assert select.select([d], [], [], 100)[0]
""",
        """
for _ in range(3):
    assert select.select([d], [], [], 100)[0], "the timer is dead"
    os.read(d, 8)
assert select.select([d], [], [], 100)[0]
""",
        quick=True,
    ),
    Row(
        "timerfd-once",
        "A timerfd that fires once, expired and unread",
        """
import ctypes, os, select, struct
libc = ctypes.CDLL(None, use_errno=True)
d = libc.timerfd_create(1, os.O_NONBLOCK)
def arm():
    assert libc.timerfd_settime(d, 0, struct.pack("qqqq", 0, 0, 0, 1_000_000), None) == 0
arm()
""",
        """
assert select.select([d], [], [], 100)[0], "the expiry was lost"
assert struct.unpack("Q", os.read(d, 8)) == (1,)
arm()
assert select.select([d], [], [], 100)[0]
""",
    ),
    Row(
        "asyncio-sleep",
        "asyncio tasks that sleep",
        """
import asyncio
async def later():
    await asyncio.sleep(1)
    return "done"
task = asyncio.create_task(later())
""",
        """
assert await asyncio.wait_for(task, 100) == "done"
task = asyncio.create_task(later())
""",
    ),
    Row(
        "signal-handlers",
        "Signal handlers, ignored signals and a mask",
        """
import os, signal
caught = []
signal.signal(signal.SIGUSR1, lambda *_: caught.append(1))
signal.signal(signal.SIGUSR2, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGWINCH])
""",
        """
caught.clear()
os.kill(os.getpid(), signal.SIGUSR1)
os.kill(os.getpid(), signal.SIGUSR2)
assert caught == [1]
assert signal.SIGWINCH in signal.pthread_sigmask(signal.SIG_BLOCK, [])
""",
    ),
    Row(
        "signal-pending",
        "A blocked signal that waits, with its value",
        """
import os, signal
def queue():
    signal.pthread_kill(__import__("threading").get_ident(), signal.SIGRTMIN)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGRTMIN])
queue(); queue()
""",
        """
for _ in range(2):
    assert signal.sigtimedwait([signal.SIGRTMIN], 100).si_signo == signal.SIGRTMIN
assert signal.sigtimedwait([signal.SIGRTMIN], 0) is None
queue(); queue()
""",
    ),
    Row(
        "timerfd-absolute",
        "A timerfd that waits for a time of the day",
        """
import ctypes, struct, time
libc = ctypes.CDLL(None, use_errno=True)
d = libc.timerfd_create(0, 0)  # CLOCK_REALTIME
at = int(time.time()) + 10_000
assert libc.timerfd_settime(d, 1, struct.pack("qqqq", 0, 0, at, 0), None) == 0
""",
        """
left = ctypes.create_string_buffer(32)
assert libc.timerfd_gettime(d, left) == 0
seconds, nanoseconds = struct.unpack("16xqq", left.raw)
assert abs(time.time() + seconds + nanoseconds / 1e9 - at) < 0.1
""",
    ),
    Row(
        "posix-timer-absolute",
        "A POSIX timer that waits for a time of the day (timer_create, TIMER_ABSTIME)",
        """
import ctypes, struct, time
libc = ctypes.CDLL(None, use_errno=True)
timer, event = ctypes.c_void_p(), struct.pack("qii48x", 0, 0, 1)  # SIGEV_NONE
assert libc.timer_create(0, event, ctypes.byref(timer)) == 0  # CLOCK_REALTIME
at = int(time.time()) + 10_000
assert libc.timer_settime(timer, 1, struct.pack("qqqq", 0, 0, at, 0), None) == 0
""",
        """
left = ctypes.create_string_buffer(32)
assert libc.timer_gettime(timer, left) == 0
seconds, nanoseconds = struct.unpack("16xqq", left.raw)
assert time.time() + seconds + nanoseconds / 1e9 > at - 0.1
""",
        exception=(
            "it fires later by as long as the kernel was away, because Linux does not tell which timers are absolute;"
            " a timerfd fires on time"
        ),
    ),
    Row(
        "processor-time",
        "The clocks of CPU time (time.process_time, getrusage, os.times)",
        """
import resource, time
""",
        """
assert time.process_time() >= 0 and resource.getrusage(resource.RUSAGE_SELF).ru_utime >= 0
""",
        exception=(
            "Linux counts from zero after a resume. Under a Jupyter server Python's own functions go on where they stopped"
        ),
    ),
]
