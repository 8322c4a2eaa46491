"""PyTorch tensors on one GPU."""

from .on_torch import TorchWork


class Work(TorchWork):
    pass
