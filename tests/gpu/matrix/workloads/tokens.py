"""The three tokens of a row: one in CPU memory, one in a file that is open, one on the GPU; each is looked at as a whole."""

import hashlib
import os
import random

#: Numbers of eight bytes in one array; a look needs a few arrays more.
PART = 1 << 22
FACTOR = 0x2545F4914F6CDD1D
#: A prime: whole blocks that change places are found, too.
PERIOD = 8191
WRAP = 1 << 64
CPU_BYTES = 4 << 20
LINE_BYTES = 33
LINES = 32


class Tokens:
    """`told` is what `new` made, `arange` is the row's."""

    def __init__(self, told, arange):
        self._cpu = bytearray(_cpu_bytes(told))
        # A look reads one line, so its place in the file is part of the state.
        self._file = os.open(told["file"], os.O_RDWR)
        self._arange = arange
        self._parts = [
            arange(start, min(start + PART, told["elements"])) * FACTOR + told["gpu"]
            for start in range(0, told["elements"], PART)
        ]

    def look(self):
        return {
            "cpu": hashlib.blake2b(self._cpu).hexdigest(),
            "file": os.read(self._file, LINE_BYTES).decode(),
            "gpu": self.on_gpu(),
        }

    def on_gpu(self):
        """Return the sum of all numbers, each times a number of its place: it finds what is lost, changed or misplaced."""
        total = start = 0
        for part in self._parts:
            stop = start + len(part)
            total += int((part * (self._arange(start, stop) % PERIOD + 1)).sum())
            start = stop
        return total % WRAP


def new(path, gpu_bytes):
    """Random tokens; the file is written."""
    source = random.SystemRandom()
    lines = [f"{source.getrandbits(128):032x}\n" for _ in range(LINES)]
    path.write_text("".join(lines))
    return {
        "cpu": source.getrandbits(62),
        "gpu": source.getrandbits(62),
        "file": str(path),
        "elements": gpu_bytes // 8,
    }


def expected(told, number):
    """Return the expected result of look `number` (from 0), computed from the kernel's file of tokens alone."""
    with open(told["file"]) as file:
        lines = file.readlines()
    return {
        "cpu": hashlib.blake2b(_cpu_bytes(told)).hexdigest(),
        "file": lines[number],
        "gpu": expected_on_gpu(told["elements"], told["gpu"]),
    }


def expected_on_gpu(count, token):
    """Return the sum over i < count of (i * FACTOR + token) * (i % PERIOD + 1), as integers of 64 bits have it."""
    total = 0
    for place in range(min(PERIOD, count)):
        times = (count - place - 1) // PERIOD + 1
        numbers = place * times + PERIOD * (times * (times - 1) // 2)
        total += (FACTOR * numbers + token * times) * (place + 1)
    return total % WRAP


def _cpu_bytes(told):
    return random.Random(told["cpu"]).randbytes(CPU_BYTES)
