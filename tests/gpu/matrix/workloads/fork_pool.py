"""A multiprocessing.Pool that was forked after CUDA's start; each of its workers keeps a number of its own."""

import multiprocessing
import random

from .on_torch import TorchWork

_kept = []


def keep(seed):
    _kept.append(random.Random(seed))


def told(number):
    return number * 2


def drawn(barrier_seconds):
    # Every worker answers once: a second task of the same one would break the barrier.
    _barrier[0].wait(barrier_seconds)
    return _kept[0].random()


_barrier = []


class Work(TorchWork):
    def __init__(self, seed):
        super().__init__(seed)
        self.arange(0, 1000)
        context = multiprocessing.get_context("fork")
        _barrier.append(context.Barrier(3))
        self._pool = context.Pool(3, keep, (seed,))
        self._pool.map(told, range(10))

    def look(self):
        return {
            **super().look(),
            "told": self._pool.map(told, range(10)),
            "drawn": self._pool.map(drawn, [60.0] * 3, chunksize=1),
        }
