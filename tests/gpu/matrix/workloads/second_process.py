"""A spawned process with CUDA contexts of its own. `gpus`: on how many it has one. `shared`: it is given a tensor of ours.

The tensor comes by CUDA IPC.
"""

import torch
import torch.multiprocessing

from .on_torch import DEVICE, TorchWork


def serve(pipe, seed, gpus, shared):
    """Run the process: answer with a running sum on each of its GPUs and the content of the shared tensor."""
    devices = [DEVICE] if gpus == 1 else [f"cuda:{number}" for number in range(gpus)]
    sums = [torch.full((1 << 24,), seed % 1000, device=device) for device in devices]
    while True:
        pipe.recv()
        for part in sums:
            part.add_(1)
        seen = None if shared is None else int(shared.sum())
        pipe.send({"sums": [int(part.sum()) for part in sums], "shared": seen})


class Work(TorchWork):
    def __init__(self, seed, gpus=1, shared=False):
        super().__init__(seed)
        context = torch.multiprocessing.get_context("spawn")
        self._shared = self.arange(0, 1 << 20) if shared else None
        self._pipe, theirs = context.Pipe()
        context.Process(target=serve, args=(theirs, seed, gpus, self._shared), daemon=True).start()
        theirs.close()
        self._ask()

    def _ask(self):
        self._pipe.send("?")
        if not self._pipe.poll(120):
            raise RuntimeError("the second process does not answer")
        return self._pipe.recv()

    def look(self):
        if self._shared is not None:
            self._shared += 1
            if DEVICE == "cuda":
                torch.cuda.synchronize()
        return {**super().look(), **self._ask()}
