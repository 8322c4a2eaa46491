"""NVML in the process that computes."""

import pynvml

from .on_torch import TorchWork


class Work(TorchWork):
    def __init__(self, seed):
        super().__init__(seed)
        pynvml.nvmlInit()
        self._handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        self._look()

    def _look(self):
        return {
            "name": str(pynvml.nvmlDeviceGetName(self._handle)),
            "uuid": str(pynvml.nvmlDeviceGetUUID(self._handle)),
            "total": pynvml.nvmlDeviceGetMemoryInfo(self._handle).total,
        }

    def look(self):
        kept = self._look()
        # Everything anew, too.
        pynvml.nvmlInit()
        count = pynvml.nvmlDeviceGetCount()
        pynvml.nvmlShutdown()
        return {**super().look(), **kept, "count": count}
