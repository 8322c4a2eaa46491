"""What notebooks do with their kernel."""

from tests.matrix.row import Row

CHAPTER = "Notebooks"
ROWS = [
    Row(
        "history",
        "In, Out, the execution count and the history",
        """
21 * 2
""",
        """
assert Out and 42 in Out.values()
assert len(In) == get_ipython().execution_count + 1 or len(In) >= 2
""",
    ),
    Row(
        "autoreload",
        "%autoreload and a module that changes",
        """
%load_ext autoreload
%autoreload 2
import os, sys
sys.path.insert(0, os.getcwd())
n = 0
def change():
    global n
    n += 1
    with open("changing.py", "w") as file:
        file.write(f"value = {n}\\n")
    os.utime("changing.py", (n * 1000, n * 1000))
change()
import changing
""",
        """
assert changing.value == n, (changing.value, n)
change()
""",
    ),
    Row(
        "script-magic",
        "%%bash --bg and a process that goes on",
        """
get_ipython().run_cell_magic("bash", "--bg --proc child", "while true; do date >> beats; sleep 0.01; done")
import os, time
""",
        """
deadline = time.monotonic() + 120
while not os.path.exists("beats"):
    assert time.monotonic() < deadline
size = os.path.getsize("beats")
while os.path.getsize("beats") == size:
    assert time.monotonic() < deadline
""",
    ),
    Row(
        "widgets",
        "Widgets and their comms",
        """
import ipywidgets
slider = ipywidgets.IntSlider(value=3)
n = 3
""",
        """
assert slider.value == n and slider.comm is not None
n += 1
slider.value = n
""",
        needs=("ipywidgets",),
    ),
    Row(
        "random",
        "Random numbers go on in the same sequence",
        """
import random, numpy as np
rng, twin = np.random.default_rng(1), np.random.default_rng(1)
one, other = random.Random(1), random.Random(1)
""",
        """
assert one.random() == other.random()
assert (rng.random(5) == twin.random(5)).all()
""",
    ),
    Row(
        "large-memory",
        "Half a gigabyte of numbers",
        """
import numpy as np
a = np.random.default_rng(1).random(60_000_000)
total = a.sum()
""",
        """
assert a.sum() == total
""",
    ),
    Row(
        "modules",
        "Modules, classes and functions of the notebook; references and weak references",
        """
import weakref
class Thing:
    def __init__(self, n):
        self.n, self.me = n, self
thing = Thing(7)
weak = weakref.ref(thing)
ids = id(thing), hash("text")
""",
        """
assert weak() is thing and thing.me is thing
assert ids == (id(thing), hash("text"))
""",
        quick=True,
    ),
]
