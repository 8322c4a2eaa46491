"""Giving back what this process holds and nobody uses, before a snapshot is taken of it.

Garbage, what frameworks keep of the GPU for the next tensor, and what the C library keeps for the next object would be read, compressed
and stored like data. Runs in the main thread between cells. No framework is loaded for it and no GPU is touched that is not in use.
"""

from __future__ import annotations

import ctypes
import gc
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from .peer_access import devices_in_use

#: What the garbage collector takes for an object, at most.
_SECONDS_PER_OBJECT = 50e-9


def trim(seconds: float) -> int:
    """Give back what can be given back in about `seconds`; by how many bytes the process became smaller.

    Only what is known to be slow is bounded by that: the garbage collector, which looks at every object. Nothing waits for a GPU.
    """
    before = _resident_bytes()
    # An object of the user's that cannot be deleted must not keep the rest from being given back.
    with suppress(Exception):
        _collect(seconds)
    with suppress(Exception):
        _trim_torch(sys.modules.get("torch"))
    with suppress(Exception):
        _trim_cupy(sys.modules.get("cupy"))
    with suppress(Exception):
        # glibc only. It keeps what lies below something that is in use, and returns the pages in between on this call alone.
        ctypes.CDLL(None).malloc_trim(0)
    return before - _resident_bytes()


def _collect(seconds: float) -> None:
    # Who has switched it off wants no pauses, or has frozen what there is to be shared with forked children.
    if gc.isenabled() and sys.getallocatedblocks() * _SECONDS_PER_OBJECT <= seconds:
        gc.collect()


def _trim_torch(torch: Any) -> None:
    if torch is None or not torch.cuda.is_initialized():
        return
    cuda = torch.cuda
    used = [device for device in range(cuda.device_count()) if cuda.memory_reserved(device)]
    # Freeing waits for what the GPU is at.
    if used and all(cuda.current_stream(device).query() for device in used):
        cuda.empty_cache()


def _trim_cupy(cupy: Any) -> None:
    # Where no GPU is in use, asking the pool alone would initialise CUDA.
    if cupy is None or not devices_in_use():
        return
    # Those of the current device; whether it is in use the pool tells.
    pool, pinned = cupy.get_default_memory_pool(), cupy.get_default_pinned_memory_pool()
    if pool.free_bytes() and cupy.cuda.get_current_stream().done:
        pool.free_all_blocks()
    if pinned.n_free_blocks():
        pinned.free_all_blocks()


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
