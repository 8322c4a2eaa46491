"""CUDA's profiling library, used once."""

from torch.profiler import ProfilerActivity, profile

from .on_torch import TorchWork


class Work(TorchWork):
    def __init__(self, seed):
        super().__init__(seed)
        with profile(activities=[ProfilerActivity.CUDA]):
            self.arange(0, 1000)
