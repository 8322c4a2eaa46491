"""A small convolutional net with dropout, batch norm and the state of AdamW; a look is a training step."""

import torch
from torch import nn

from .on_torch import DEVICE, TorchWork, deterministic


class Mean(nn.Module):
    """Over the picture. PyTorch's own pooling has no deterministic gradient."""

    def forward(self, pictures):
        return pictures.mean((2, 3))


def network():
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1),
        nn.BatchNorm2d(32),
        nn.GELU(),
        nn.Conv2d(32, 64, 3, stride=2, padding=1),
        nn.GELU(),
        Mean(),
        nn.Dropout(0.1),
        nn.Linear(64, 10),
    ).to(DEVICE)


class Work(TorchWork):
    def __init__(self, seed):
        deterministic(seed)
        super().__init__(seed)
        self._network = network()
        self._optimizer = torch.optim.AdamW(self._network.parameters(), lr=1e-3)
        # Its moments exist before anything is frozen.
        super().look()
        self._step()

    def _step(self):
        pictures = torch.randn(64, 3, 64, 64, device=DEVICE, generator=self.random)
        labels = torch.randint(10, (64,), device=DEVICE, generator=self.random)
        self._optimizer.zero_grad()
        loss = nn.functional.cross_entropy(self._network(pictures), labels)
        loss.backward()
        self._optimizer.step()
        return loss.item().hex()

    def look(self):
        moments = [
            value.double().abs().sum().item().hex()
            for state in self._optimizer.state.values()
            for value in state.values()
        ]
        return {**super().look(), "loss": self._step(), "moments": moments}
