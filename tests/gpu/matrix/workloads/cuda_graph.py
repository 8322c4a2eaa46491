"""A CUDA graph that was captured before and is replayed after; it adds to memory that only it writes."""

import torch

from .on_torch import TorchWork


class Work(TorchWork):
    def __init__(self, seed):
        super().__init__(seed)
        self._input = torch.zeros(1 << 20, device="cuda")
        self._sum = torch.zeros_like(self._input)
        self._replays = 0
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            self._captured()
        torch.cuda.current_stream().wait_stream(side)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._captured()
        self._sum.zero_()

    def _captured(self):
        self._sum.add_(self._input * 2 + 1)

    def look(self):
        self._replays += 1
        self._input.fill_(self._replays)
        self._graph.replay()
        torch.cuda.synchronize()
        low, high = self._sum.aminmax()
        return {**super().look(), "low": low.item(), "high": high.item()}
