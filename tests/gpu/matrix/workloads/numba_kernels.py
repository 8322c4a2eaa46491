"""Numba: a kernel compiled before, one compiled after, an array of Numba's own."""

import numpy as np
from numba import cuda

from .on_torch import TorchWork

LENGTH = 1 << 22


def kernel(number):
    """Return a kernel that is compiled for this number alone."""

    @cuda.jit
    def add(numbers):
        place = cuda.grid(1)  # type: ignore[call-arg] # the compiler knows it as something else
        if place < numbers.size:
            numbers[place] += number

    return add


class Work(TorchWork):
    def __init__(self, seed):
        super().__init__(seed)
        self._numbers = cuda.to_device(np.full(LENGTH, seed % 1000, dtype=np.int64))
        self._before, self._looks = kernel(5), 0
        self._run(self._before)

    def _run(self, one):
        one[LENGTH // 256, 256](self._numbers)
        cuda.synchronize()

    def look(self):
        self._looks += 1
        self._run(self._before)
        self._run(kernel(self._looks))
        return {**super().look(), "sum": int(self._numbers.copy_to_host().sum())}
