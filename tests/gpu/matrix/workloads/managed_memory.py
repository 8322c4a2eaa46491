"""Managed memory, which the driver refuses."""

import ctypes

from cuda.bindings import driver

from .on_torch import TorchWork

BYTES = 1 << 20


class Work(TorchWork):
    def __init__(self, seed):
        super().__init__(seed)
        self.arange(0, 1000)  # makes the context
        error, address = driver.cuMemAllocManaged(BYTES, 1)  # CU_MEM_ATTACH_GLOBAL
        if int(error):
            raise RuntimeError(f"cuMemAllocManaged: {error}")
        self._address = int(address)
        ctypes.memset(self._address, 1, BYTES)

    def look(self):
        # Something for the GPU, then something for the CPU.
        (error,) = driver.cuMemsetD8(self._address, 7, BYTES // 2)
        (ended,) = driver.cuCtxSynchronize()
        held = ctypes.string_at(self._address, BYTES)
        return {
            **super().look(),
            "errors": [int(error), int(ended)],
            "managed": [held.count(7), held.count(1)],
        }
