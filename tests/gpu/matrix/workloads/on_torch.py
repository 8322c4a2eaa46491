"""What the rows of PyTorch have in common. MATRIX_DEVICE=cpu: a machine without a GPU can run those that need none."""

import os

import torch

DEVICE = os.environ.get("MATRIX_DEVICE", "cuda")


def deterministic(seed):
    """Seed the generators, so that every process with this seed draws the same numbers."""
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
    torch.manual_seed(seed)


class TorchWork:
    """Tensors on one GPU."""

    def __init__(self, seed):
        self.random = torch.Generator(DEVICE).manual_seed(seed)

    def arange(self, start, stop):
        return torch.arange(start, stop, device=DEVICE)

    def look(self):
        # The generator's state lies in the process, its numbers on the GPU.
        numbers = torch.randint(1000, (1 << 16,), device=DEVICE, generator=self.random)
        return {"random": int(numbers.sum())}
