"""A pool of spawned workers, each with a CUDA context and tensors of its own."""

import concurrent.futures
import multiprocessing

import torch

from .on_torch import DEVICE, TorchWork

WORKERS = 2
_kept = {}


def begin(seed, barrier):
    """Make what a worker keeps."""
    _kept.update(sum=torch.full((1 << 22,), seed % 1000, device=DEVICE), barrier=barrier)


def count(number):
    """Go a step on in one worker, once all of them do."""
    # A second task of the same worker would break the barrier.
    _kept["barrier"].wait(120)
    _kept["sum"].add_(number)
    return int(_kept["sum"].sum())


class Work(TorchWork):
    def __init__(self, seed):
        super().__init__(seed)
        self.arange(0, 1000)
        context = multiprocessing.get_context("spawn")
        self._pool = concurrent.futures.ProcessPoolExecutor(
            WORKERS, context, begin, (seed, context.Barrier(WORKERS))
        )
        self._step()

    def _step(self):
        return list(self._pool.map(count, [3] * WORKERS))

    def look(self):
        return {**super().look(), "sums": self._step()}
