"""NumPy, no GPU: shows that the row's machinery works, and finds what is wrong."""

import random

import numpy as np


class Work:
    def __init__(self, seed):
        self._random = random.Random(seed)
        self._looks = 0

    def arange(self, start, stop):
        return np.arange(start, stop)

    def look(self):
        self._looks += 1
        return {"random": self._random.random()}

    def counters(self):
        return {"looks": self._looks}
