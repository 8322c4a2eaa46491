"""PyTorch: tensors in a memory pool of the program's own, and two CUDA graphs that share a private pool."""

import torch

from .on_torch import TorchWork

LENGTH = 1 << 22


class Work(TorchWork):
    def __init__(self, seed):
        super().__init__(seed)
        self._pool = torch.cuda.MemPool()
        with torch.cuda.use_mem_pool(self._pool):
            self._kept = torch.full((LENGTH,), seed % 1000, device="cuda")
        self._input = torch.zeros(LENGTH, dtype=torch.int64, device="cuda")
        self._shared = torch.cuda.graph_pool_handle()
        first, self._doubled = self._captured(lambda: self._input * 2)
        second, self._result = self._captured(lambda: self._doubled + self._kept)
        self._graphs, self._looks = [first, second], 0

    def _captured(self, compute):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._shared):
            result = compute()
        return graph, result

    def look(self):
        self._looks += 1
        self._input.fill_(self._looks)
        self._kept.add_(1)
        for graph in self._graphs:
            graph.replay()
        with torch.cuda.use_mem_pool(self._pool):
            more = self._kept * 3
        return {**super().look(), "sums": [int(self._result.sum()), int(more.sum())]}
