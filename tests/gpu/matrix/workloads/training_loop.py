"""A training loop with a DataLoader's workers, which is suspended while it runs. `pace`: seconds between two steps.

A look is the whole loop, all at once: the twin's losses.
"""

import os
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from .on_torch import DEVICE, TorchWork, deterministic
from .torch_training import network

STEPS = 1500


class Pictures(Dataset):
    def __len__(self):
        return 1024

    def __getitem__(self, index):
        return torch.randn(3, 16, 16) + index % 10, index % 10


class Work(TorchWork):
    def __init__(self, seed, pace=0.0):
        deterministic(seed)
        super().__init__(seed)
        self._pace, self.losses = pace, []
        self._network = network()
        self._optimizer = torch.optim.AdamW(self._network.parameters(), lr=1e-3)
        self._loader = DataLoader(
            Pictures(),
            batch_size=16,
            shuffle=True,
            num_workers=2,
            persistent_workers=True,
            pin_memory=DEVICE == "cuda",
            multiprocessing_context="fork",
            generator=torch.Generator().manual_seed(seed),
        )

    def train(self, told="", until=""):
        """Train until a file `until` exists; the number of steps done is always in the file `told`, as a number of 8 digits."""
        count = os.open(told, os.O_WRONLY) if told else None
        while True:
            for pictures, labels in self._loader:
                self._optimizer.zero_grad()
                found = self._network(pictures.to(DEVICE))
                loss = nn.functional.cross_entropy(found, labels.to(DEVICE))
                loss.backward()
                self._optimizer.step()
                self.losses.append(loss.item().hex())
                if count is not None:
                    os.pwrite(count, b"%08d" % len(self.losses), 0)
                if len(self.losses) == STEPS or (until and Path(until).exists()):
                    return
                time.sleep(self._pace)

    def look(self):
        self.train()
        return self.losses
