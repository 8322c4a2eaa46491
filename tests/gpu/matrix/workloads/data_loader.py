"""A DataLoader with persistent workers, forked after CUDA's start, in mid-epoch. `pin`: batches come by pinned memory."""

import torch
from torch.utils.data import DataLoader, Dataset

from .on_torch import DEVICE, TorchWork


class Numbers(Dataset):
    """Random changes happen in the workers."""

    def __len__(self):
        return 96

    def __getitem__(self, index):
        return torch.full((1000,), index) * 1000 + torch.randint(1000, (1000,))


class Work(TorchWork):
    def __init__(self, seed, pin=False):
        super().__init__(seed)
        self.arange(0, 1000)  # CUDA runs before the workers are forked
        self._loader = DataLoader(
            Numbers(),
            batch_size=4,
            shuffle=True,
            num_workers=2,
            persistent_workers=True,
            pin_memory=pin,
            multiprocessing_context="fork",
            generator=torch.Generator().manual_seed(seed),
        )
        self._batches = iter(self._loader)
        for _ in range(3):
            next(self._batches)

    def look(self):
        found = [self._next() for _ in range(2)]
        return {**super().look(), "batches": found}

    def _next(self):
        batch = next(self._batches)
        return {"sum": int(batch.to(DEVICE, non_blocking=True).sum()), "pinned": batch.is_pinned()}
