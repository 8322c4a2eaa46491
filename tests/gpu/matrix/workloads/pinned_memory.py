"""1 GB of pinned host memory, copied to the GPU as a whole at every look, and written to by it."""

import torch

from .on_torch import DEVICE, TorchWork
from .tokens import PART, PERIOD, WRAP

COUNT = 1 << 27


class Work(TorchWork):
    def __init__(self, seed):
        super().__init__(seed)
        self._pinned = torch.empty(COUNT, dtype=torch.int64, pin_memory=DEVICE == "cuda")
        for start in range(0, COUNT, PART):
            self._pinned[start : start + PART].copy_(self.arange(start, start + PART) * seed)

    def look(self):
        total = 0
        for start in range(0, COUNT, PART):
            part = self._pinned[start : start + PART]
            there = part.to(DEVICE, non_blocking=True)
            total += int((there * (self.arange(start, start + PART) % PERIOD)).sum())
            part.copy_(there + 1, non_blocking=True)
        if DEVICE == "cuda":
            torch.cuda.synchronize()
        return {**super().look(), "sum": total % WRAP, "pinned": self._pinned.is_pinned()}
