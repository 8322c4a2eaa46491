"""CuPy: arrays, a kernel compiled before, one compiled after. `peers`: peer access between two GPUs is on."""

import cupy

SOURCE = """
extern "C" __global__ void add(long long* numbers, long long count) {{
    long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (i < count) numbers[i] += {number};
}}
"""


class Work:
    def __init__(self, seed, peers=False):
        self._looks = 0
        self._sums = [self._zeros(gpu) for gpu in range(1 + peers)]
        self._before = self._kernel(seed % 1000)
        for own, other in ((0, 1), (1, 0)) if peers else ():
            with cupy.cuda.Device(own):
                cupy.cuda.runtime.deviceEnablePeerAccess(other)

    def _zeros(self, gpu):
        with cupy.cuda.Device(gpu):
            return cupy.zeros(1 << 20, dtype=cupy.int64)

    def arange(self, start, stop):
        return cupy.arange(start, stop, dtype=cupy.int64)

    def _kernel(self, number):
        return cupy.RawKernel(SOURCE.format(number=number), "add")

    def look(self):
        self._looks += 1
        found = {"sums": []}
        for kernel in (self._before, self._kernel(1000 + self._looks)):
            for gpu, sums in enumerate(self._sums):
                with cupy.cuda.Device(gpu):
                    kernel((1 << 12,), (1 << 8,), (sums, cupy.int64(sums.size)))
                    found["sums"] += [int(sums.min()), int(sums.max())]
        if len(self._sums) > 1:
            found |= self._across()
        return found

    def _across(self):
        from .peer_access import peer_access  # noqa: PLC0415 - a package that the other row does not need

        there = self._zeros(1)
        there.data.copy_from_device(self._sums[0].data, there.nbytes)
        with cupy.cuda.Device(1):
            return {"there": int(there.sum()), "peers": peer_access()}
