"""Threads of Python and of native libraries."""

from tests.matrix.row import Row

CHAPTER = "Threads"
ROWS = [
    Row(
        "threads-python",
        "Threads with queues, locks, conditions and thread-local values",
        """
import queue, threading
questions, answers = queue.Queue(), queue.Queue()
local = threading.local()
def work():
    local.n = 0
    while True:
        local.n += questions.get()
        answers.put((threading.get_native_id(), local.n))
thread = threading.Thread(target=work, daemon=True)
thread.start()
n = 0
""",
        """
questions.put(1)
n += 1
assert answers.get(timeout=100) == (thread.native_id, n)
""",
        quick=True,
    ),
    Row(
        "thread-pool",
        "concurrent.futures.ThreadPoolExecutor with a task that runs",
        """
import concurrent.futures, threading
pool = concurrent.futures.ThreadPoolExecutor(4)
event = threading.Event()
waiting = pool.submit(event.wait)
""",
        """
assert list(pool.map(abs, range(-10, 0))) == list(range(10, 0, -1))
assert not waiting.done()
""",
    ),
    Row(
        "blas",
        "numpy's BLAS with its threads",
        """
import numpy as np
rng = np.random.default_rng(1)
a = rng.random((400, 400))
expected = a @ a
""",
        """
assert np.allclose(a @ a, expected)
""",
    ),
    Row(
        "openmp",
        "OpenMP threads (scikit-learn)",
        """
import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier
rng = np.random.default_rng(1)
x = rng.random((500, 4))
y = x[:, 0] > 0.5
expected = HistGradientBoostingClassifier(max_iter=5).fit(x, y).predict(x)
""",
        """
assert (HistGradientBoostingClassifier(max_iter=5).fit(x, y).predict(x) == expected).all()
""",
        needs=("sklearn",),
        patience=3 * 60,
    ),
    Row(
        "rayon",
        "Rayon's threads (polars)",
        """
import polars as pl
frame = pl.DataFrame({"k": [n % 7 for n in range(10000)], "v": list(range(10000))})
expected = frame.group_by("k").sum().sort("k")
""",
        """
assert frame.group_by("k").sum().sort("k").equals(expected)
""",
        needs=("polars",),
    ),
    Row(
        "numba",
        "numba with parallel loops",
        """
import numba, numpy as np
@numba.njit(parallel=True)
def total(a):
    s = 0.0
    for i in numba.prange(a.size):
        s += a[i]
    return s
values = np.arange(1000.0)
""",
        """
assert total(values) == 499500
""",
        needs=("numba",),
        patience=3 * 90,
    ),
    Row(
        "robust-mutex",
        "A robust mutex in shared memory, held",
        """
import ctypes, mmap
libc = ctypes.CDLL(None, use_errno=True)
m = mmap.mmap(-1, 4096)
mutex = ctypes.c_char.from_buffer(m)
attributes = ctypes.create_string_buffer(64)
assert libc.pthread_mutexattr_init(attributes) == 0
assert libc.pthread_mutexattr_setrobust(attributes, 1) == 0
assert libc.pthread_mutexattr_setpshared(attributes, 1) == 0
assert libc.pthread_mutexattr_settype(attributes, 2) == 0
assert libc.pthread_mutex_init(ctypes.byref(mutex), attributes) == 0
assert libc.pthread_mutex_lock(ctypes.byref(mutex)) == 0
""",
        """
assert libc.pthread_mutex_lock(ctypes.byref(mutex)) == 35  # EDEADLK: it is ours
""",
    ),
    Row(
        "thread-names",
        "Names of threads",
        """
import ctypes, threading
libc = ctypes.CDLL(None)
started, event = threading.Event(), threading.Event()
def work():
    libc.prctl(15, b"row-thread", 0, 0, 0)
    started.set()
    event.wait()
thread = threading.Thread(target=work, daemon=True)
thread.start()
started.wait()
""",
        """
assert open(f"/proc/self/task/{thread.native_id}/comm").read() == "row-thread\\n"
""",
    ),
    Row(
        "thread-directory",
        "A thread with a working directory and a umask of its own (unshare)",
        """
import ctypes, os, queue, threading
questions, answers = queue.Queue(), queue.Queue()
def work():
    assert ctypes.CDLL(None).unshare(0x200) == 0
    os.chdir("/usr")
    os.umask(0o77)
    while True:
        questions.get()
        os.umask(umask := os.umask(0))
        answers.put((os.getcwd(), umask))
threading.Thread(target=work, daemon=True).start()
here = os.getcwd()
""",
        """
questions.put(1)
assert answers.get(timeout=100) == ("/usr", 0o77)
assert os.getcwd() == here != "/usr"
""",
    ),
    Row(
        "greenlets",
        "greenlets (gevent) that are switched out",
        """
import greenlet
def count():
    n = 0
    while True:
        n += 1
        greenlet.getcurrent().parent.switch(n)
g = greenlet.greenlet(count)
expected = 0
""",
        """
expected += 1
assert g.switch() == expected
""",
        needs=("greenlet",),
    ),
    Row(
        "generators",
        "Generators, coroutines and contexts that are half run",
        """
import contextvars
def numbers():
    n = 0
    while True:
        yield n
        n += 1
g = numbers()
variable = contextvars.ContextVar("v", default=0)
context = contextvars.copy_context()
context.run(variable.set, 7)
expected = 0
""",
        """
assert next(g) == expected
expected += 1
assert context.run(variable.get) == 7
""",
    ),
]
