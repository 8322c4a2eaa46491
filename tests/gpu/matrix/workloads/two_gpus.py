"""PyTorch on two GPUs. `peers`: tensors went from one to the other, so peer access is on. `nccl`: NCCL works between them.

`copies`: the driver copies from one to the other without peer access. `cumem`: whether NCCL may take its memory by cuMemCreate.
`uneven`: the tokens lie on the first GPU alone.
"""

import os

import torch
import torch.cuda.nccl

from .on_torch import TorchWork
from .tokens import PART


class Work(TorchWork):
    def __init__(self, seed, peers=False, nccl=False, cumem=True, copies=False, uneven=False):
        if not cumem:  # before any memory is taken
            os.environ["NCCL_CUMEM_ENABLE"] = "0"
        super().__init__(seed)
        self._peers, self._nccl, self._copies, self._uneven = peers, nccl, copies, uneven
        self._sums = [
            torch.full((1 << 24,), seed % 1000 + number, device=f"cuda:{number}")
            for number in range(2)
        ]
        if peers:
            from .peer_access import ON, peer_access  # noqa: PLC0415 - a package that the other rows do not need

            self._peer_access = peer_access
            for number, part in enumerate(self._sums):
                part.to(f"cuda:{1 - number}")
            if ON not in peer_access():
                raise RuntimeError(f"peer access is not on: {peer_access()}")
        if nccl:
            # Multicast memory cannot be taken off a GPU.
            os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
            self._reduce()

    def arange(self, start, stop):
        number = 0 if self._uneven else start // PART % 2
        return torch.arange(start, stop, device=f"cuda:{number}")

    def _reduce(self):
        tensors = [
            torch.full((1 << 20,), 3.0 + number, device=f"cuda:{number}") for number in (0, 1)
        ]
        torch.cuda.nccl.all_reduce(tensors)
        return [tensor.mean().item() for tensor in tensors]

    def _copied(self):
        """Return the sums of copies of each part on the other GPU."""
        from .peer_access import contexts, copied  # noqa: PLC0415 - a package that the other rows do not need

        found = []
        with contexts() as each:
            for number, part in enumerate(self._sums):
                there = torch.zeros_like(part, device=f"cuda:{1 - number}")
                torch.cuda.synchronize(0), torch.cuda.synchronize(1)
                copied(
                    there.data_ptr(), each[1 - number], part.data_ptr(), each[number], part.nbytes
                )
                found.append(int((there + 1).sum()))
        return found

    def look(self):
        for part in self._sums:
            part.add_(1)
        found = {**super().look(), "sums": [int(part.sum()) for part in self._sums]}
        if self._peers:
            found["moved"] = [
                int((part.to(f"cuda:{1 - number}") + 1).sum())
                for number, part in enumerate(self._sums)
            ]
            found["peers"] = self._peer_access()
        if self._copies:
            found["copied"] = self._copied()
        if self._nccl:
            found["reduced"] = self._reduce()
        return found
