"""A spawned process with CUDA contexts of its own. `gpus`: on how many it has one; on several, its memory went from one to the other.

`shared`: it is given a tensor of ours, which comes by CUDA IPC. `drops`: it keeps a copy only.
"""

import torch
import torch.multiprocessing

from .on_torch import DEVICE, TorchWork


def serve(pipe, seed, gpus):
    """Run the process: answer with a running sum on each of its GPUs and the content of the tensor that came first."""
    shared, drops = pipe.recv()
    devices = [DEVICE] if gpus == 1 else [f"cuda:{number}" for number in range(gpus)]
    sums = [torch.full((1 << 24,), seed % 1000, device=device) for device in devices]
    if gpus > 1:
        sums = [
            part.to(device) for part, device in zip(sums, devices[1:] + devices[:1], strict=True)
        ]
    if drops:
        copy = shared.clone()
        if DEVICE == "cuda":
            torch.cuda.synchronize()
        del shared
        shared = copy
    while True:
        pipe.recv()
        for part in sums:
            part.add_(1)
        seen = None if shared is None else int(shared.sum())
        pipe.send({"sums": [int(part.sum()) for part in sums], "shared": seen})


class Work(TorchWork):
    def __init__(self, seed, gpus=1, shared=False, drops=False):
        super().__init__(seed)
        context = torch.multiprocessing.get_context("spawn")
        self._shared = self.arange(0, 1 << 20) if shared else None
        self._changes = shared and not drops
        self._pipe, theirs = context.Pipe()
        context.Process(target=serve, args=(theirs, seed, gpus), daemon=True).start()
        theirs.close()
        self._pipe.send((self._shared, drops))
        self._ask()

    def _ask(self):
        self._pipe.send("?")
        if not self._pipe.poll(120):
            raise RuntimeError("the second process does not answer")
        return self._pipe.recv()

    def look(self):
        if self._changes:
            self._shared += 1
            if DEVICE == "cuda":
                torch.cuda.synchronize()
        return {**super().look(), **self._ask()}
