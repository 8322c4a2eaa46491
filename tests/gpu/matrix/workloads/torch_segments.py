"""PyTorch with expandable segments, whose memory PyTorch makes by cuMemCreate and maps piece by piece."""

import os

import torch

from .on_torch import TorchWork


class Work(TorchWork):
    def __init__(self, seed):
        # Read at the first allocation.
        os.environ["PYTORCH_ALLOC_CONF"] = "expandable_segments:True"
        os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
        super().__init__(seed)
        self._parts = [
            torch.full((1 << 22,), seed % 1000 + number, device="cuda") for number in range(8)
        ]
        if not all(one["is_expandable"] for one in torch.cuda.memory_snapshot()):
            raise RuntimeError("PyTorch has segments that are not expandable")

    def look(self):
        # A hole, which the next allocations unmap and map anew.
        del self._parts[2:4]
        torch.cuda.empty_cache()
        self._parts += [torch.full((3 << 20,), number, device="cuda") for number in range(2)]
        for part in self._parts:
            part.add_(1)
        return {**super().look(), "sums": [int(part.sum()) for part in self._parts]}
