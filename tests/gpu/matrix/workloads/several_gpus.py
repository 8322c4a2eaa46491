"""PyTorch on several GPUs. `peers`: tensors went from one to the other, so peer access is on. `nccl`: NCCL works between them.

`copies`: the driver copies from one to the other without peer access. `cumem`: whether NCCL may take its memory by cuMemCreate.
`uneven`: the tokens lie on the first GPU alone. `pool`: the other GPUs' part is memory of their default pool (cudaMallocAsync).
"""

import os

import torch
import torch.cuda.nccl

from .on_torch import TorchWork
from .tokens import PART

LENGTH = 1 << 24
#: For which a GPU is busy: about 0.2 s.
SLEEP_CYCLES = 400_000_000


class Work(TorchWork):
    def __init__(
        self,
        seed,
        gpus=2,
        peers=False,
        nccl=False,
        cumem=True,
        copies=False,
        uneven=False,
        pool=False,
    ):
        if not cumem:  # before any memory is taken
            os.environ["NCCL_CUMEM_ENABLE"] = "0"
        super().__init__(seed)
        self._gpus, self._peers, self._nccl, self._copies = gpus, peers, nccl, copies
        self._uneven = uneven or pool
        #: The addresses of the parts in pools.
        self._pools = []
        if peers or copies or pool:
            from . import peer_access  # noqa: PLC0415 - it needs a package that the other rows do not

            self._driver = peer_access
        self._sums = [
            torch.full((LENGTH,), seed % 1000 + number, device=f"cuda:{number}")
            for number in range(1 if pool else gpus)
        ]
        if pool:
            length = self._sums[0].nbytes
            self._pools = [self._driver.from_pool(number, length) for number in range(1, gpus)]
        if peers:
            for number, part in enumerate(self._sums):
                part.to(f"cuda:{self._next(number)}")
            if self._driver.ON not in (found := self._driver.peer_access(gpus)):
                raise RuntimeError(f"peer access is not on: {found}")
        if nccl:
            # Multicast memory cannot be taken off a GPU.
            os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
            self._reduce()

    def _next(self, number):
        return (number + 1) % self._gpus

    def arange(self, start, stop):
        number = 0 if self._uneven else start // PART % self._gpus
        return torch.arange(start, stop, device=f"cuda:{number}")

    def _reduce(self):
        tensors = [
            torch.full((1 << 20,), 3.0 + number, device=f"cuda:{number}")
            for number in range(self._gpus)
        ]
        torch.cuda.nccl.all_reduce(tensors)
        return [tensor.mean().item() for tensor in tensors]

    def _copied(self):
        """Return the sums of copies of each part on the next GPU."""
        found = []
        with self._driver.contexts(self._gpus) as each:
            for number, part in enumerate(self._sums):
                there = torch.zeros_like(part, device=f"cuda:{self._next(number)}")
                for device in range(self._gpus):
                    torch.cuda.synchronize(device)
                to = each[self._next(number)]
                start = each[number]
                self._driver.copied(there.data_ptr(), to, part.data_ptr(), start, part.nbytes)
                found.append(int((there + 1).sum()))
        return found

    def _through_pools(self):
        """Copy the first GPU's part to each pool and back; return the sums of the copies.

        The copies name only addresses. The driver makes such copies only in a context of the pool's GPU. They wait for the work of the
        first GPU, which is not yet done.
        """
        found, part = [], self._sums[0]
        for number, address in enumerate(self._pools, 1):
            torch.cuda._sleep(SLEEP_CYCLES)
            part.add_(number)
            with torch.cuda.device(number):
                self._driver.copied_at_once(address, part.data_ptr(), part.nbytes)
            found.append(self._held(number, address))
        return found

    def _held(self, number, address):
        """Return the sum of what a pool holds."""
        back = torch.zeros_like(self._sums[0])
        with torch.cuda.device(number):
            self._driver.copied_at_once(back.data_ptr(), address, back.nbytes)
        return int(back.sum())

    def look(self):
        # What the pools hold now has been there since the last look.
        kept = [self._held(*each) for each in enumerate(self._pools, 1)]
        for part in self._sums:
            part.add_(1)
        found = {**super().look(), "sums": [int(part.sum()) for part in self._sums], "kept": kept}
        if self._peers:
            found["moved"] = [
                int((part.to(f"cuda:{self._next(number)}") + 1).sum())
                for number, part in enumerate(self._sums)
            ]
            found["peers"] = self._driver.peer_access(self._gpus)
        if self._copies:
            found["copied"] = self._copied()
        if self._pools:
            found["pools"] = self._through_pools()
        if self._nccl:
            found["reduced"] = self._reduce()
        return found
