"""A clock that a test sets, for processes into which `clock.c` is preloaded: their time of day, and the times of their files."""

import itertools
import mmap
import struct
import subprocess
import threading
import time
from pathlib import Path

SOURCE = Path(__file__).with_name("clock.c")
#: As in `clock.c`.
MOST_STEPS = 100_000
#: How long files go on getting times of the old clock after a step: a file that is written while the step is being entered would
#: otherwise show two times, one before and one after, as no file does.
_ENTERING_NS = 20_000_000
COUNT, STEP = struct.Struct("q"), struct.Struct("qq")
#: Held by the thread that sets a clock. Only one process sets one clock at a time.
STEPPING = threading.Lock()
#: What a clock that jumps is shifted by, one after the other: a little, hours, more than the life of anything, in both directions.
JUMPS = (-3600.0, 600.0, 2 * 86_400.0, -7200.0, -0.5, 40 * 86_400.0, -42 * 86_400.0, 60.0)


def build(folder):
    """Compile the library; return its path."""
    library = Path(folder) / "clock.so"
    options = ["-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o", library]
    subprocess.run(["gcc", *options, SOURCE, "-ldl"], check=True)
    return library


class Clock:
    """The clock in a file. `library`: None to set the clock of a process that has it already."""

    def __init__(self, path, library=None):
        self._path, self._library = Path(path), library
        if not self._path.exists():
            self._path.write_bytes(bytes(COUNT.size + MOST_STEPS * STEP.size))

    @property
    def env(self):
        """The environment of a process that is to have this clock."""
        return {"LD_PRELOAD": str(self._library), "TEST_CLOCK": str(self._path)}

    def step(self, seconds):
        """Set the clock forward, or back by a negative number of seconds."""
        with (
            STEPPING,  # no lock of the file: a process that is forked meanwhile would keep it
            self._path.open("r+b") as file,
            mmap.mmap(file.fileno(), 0) as history,
        ):
            [count] = COUNT.unpack_from(history)
            # Replacing an entry would change the times of files.
            assert count < MOST_STEPS, "the clock was set too often for its file"
            shift = STEP.unpack_from(history, self._at(count - 1))[1] if count else 0
            real = time.time_ns() - (0 if self._library else shift)
            STEP.pack_into(
                history, self._at(count), real + _ENTERING_NS, shift + round(seconds * 1e9)
            )
            COUNT.pack_into(history, 0, count + 1)

    def jump(self):
        """Set the clock, each time by another amount and in another direction than the last time."""
        with self._path.open("rb") as file:
            [count] = COUNT.unpack(file.read(COUNT.size))
        self.step(next(itertools.islice(itertools.cycle(JUMPS), count, None)))

    @staticmethod
    def _at(place):
        return COUNT.size + place * STEP.size
