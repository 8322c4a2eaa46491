"""GPU memory that benchmarks fill: whether there is a GPU for it, how much of it, and the code that fills it."""

from __future__ import annotations

from importlib.util import find_spec

from jupyter_client.blocking.client import BlockingKernelClient

from jupyter_gpuckpt.engine.gpu.driver import cuda
from jupyter_gpuckpt.host import gpu

from .room import GB, Skipped, fitting

#: A context and what PyTorch keeps.
_SPARE_BYTES = 4 * GB

#: `x`: `size` bytes of random numbers, made in pieces so that nothing else is taken; `total()` is their sum.
FILL = """
import torch
x = torch.empty(size // 8, device="cuda", dtype=torch.int64)
for part in x.split(1 << 27):
    part.random_(-(1 << 62), 1 << 62)
torch.cuda.synchronize()
def total():
    return sum(int(part.sum()) for part in x.split(1 << 27))
"""


#: The timeout of a cell, in seconds.
CELL_SECONDS = 300


def require_right_answer(channel: BlockingKernelClient) -> None:
    """Check the memory of a kernel that ran `FILL`, and wait for the result. The sum `total()` reads all of it."""
    message = channel.execute("assert total() == expected")
    while True:
        reply = channel.get_shell_msg(timeout=CELL_SECONDS)
        if reply["parent_header"].get("msg_id") == message:
            assert reply["content"]["status"] == "ok", reply["content"]
            return


def sizes(wanted_gb: list[float], *, memory: float, disk: float) -> list[float]:
    """Those that fit on the emptiest GPU and in this machine. Raises Skipped where no GPU can be used."""
    usable, reason = cuda.available()
    if not usable:
        raise Skipped(reason)
    if find_spec("torch") is None:
        raise Skipped("PyTorch is not installed")
    free = max(gpu.free_bytes().values()) - _SPARE_BYTES
    fits = [size for size in wanted_gb if size * GB <= free]
    if not fits:
        raise Skipped(f"{free / GB:.1f} GB of GPU memory are free")
    return fitting(fits, memory=memory, disk=disk)
