"""torch.compile with Triton: what was compiled before runs after, and the frozen compile workers compile more."""

import os
import tempfile

import psutil
import torch

from .on_torch import DEVICE, TorchWork


def scaled(numbers):
    return ((numbers * 3 + 7) % 1009).sum()


class Work(TorchWork):
    def __init__(self, seed):
        super().__init__(seed)
        # What a twin has compiled must not be found: then nobody would compile.
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp(prefix="inductor-")
        os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "2"
        from torch._inductor.async_compile import AsyncCompile  # noqa: PLC0415 - reads these now

        self._numbers = self.arange(0, 1 << 20)
        self._compiled = torch.compile(scaled, dynamic=False)
        self._compiled(self._numbers)
        AsyncCompile.wait_pool_ready()
        self._looks = 0

    def look(self):
        self._looks += 1
        again = int(self._compiled(self._numbers))
        # Another shape is another kernel.
        fewer = self._numbers[: 1000 * self._looks]
        return {
            **super().look(),
            "again": again == int(scaled(self._numbers)),
            "new": int(self._compiled(fewer)) == int(scaled(fewer)),
            "device": str(self._numbers.device.type) == DEVICE,
            "workers": self._workers(),
        }

    def _workers(self):
        children = psutil.Process().children(recursive=True)
        return any("compile_worker" in " ".join(child.cmdline()) for child in children)
