"""A thread that launches kernels in a loop."""

import threading
import time

import torch

from .on_torch import DEVICE, TorchWork


class Work(TorchWork):
    def __init__(self, seed):
        super().__init__(seed)
        self._lock = threading.Lock()
        self._launches = 0
        self._value = torch.zeros(1000, dtype=torch.int64, device=DEVICE)
        threading.Thread(target=self._launch, daemon=True).start()

    def _launch(self):
        while True:
            with self._lock:
                self._value += 1
                self._launches += 1
            time.sleep(0.0005)  # the lock's other users want it, too

    def look(self):
        with self._lock:
            wrong = int((self._value - self._launches).abs().sum())
        return {**super().look(), "wrong": wrong}

    def counters(self):
        return {"launches": self._launches}
