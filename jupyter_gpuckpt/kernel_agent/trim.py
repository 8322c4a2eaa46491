"""Freeing unused memory of this process before a snapshot is taken of it.

Garbage, GPU memory that frameworks cache and memory that the C library caches would be read, compressed and stored like data. `trim`
runs in the main thread between cells. It loads no framework and uses no GPU that is not in use.
"""

from __future__ import annotations

import ctypes
import gc
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from .cuda_peer_access import devices_in_use

#: An upper bound of the garbage collector's time per object.
_SECONDS_PER_OBJECT = 50e-9


def trim(seconds: float) -> int:
    """Free unused memory in about `seconds`; return by how many bytes the process became smaller.

    The limit applies to the garbage collector only, which is slow as it examines every object. Nothing waits for a GPU.
    """
    before = _resident_bytes()
    # A user's object that cannot be deleted must not keep the rest from being freed.
    with suppress(Exception):
        _collect(seconds)
    with suppress(Exception):
        _trim_torch(sys.modules.get("torch"))
    with suppress(Exception):
        _trim_cupy(sys.modules.get("cupy"))
    with suppress(Exception):
        # glibc only: free pages between used ones are returned to Linux by this call alone.
        ctypes.CDLL(None).malloc_trim(0)
    return before - _resident_bytes()


def _collect(seconds: float) -> None:
    # A user who has disabled the collector wants no pauses, or has frozen objects that forked children share.
    if gc.isenabled() and sys.getallocatedblocks() * _SECONDS_PER_OBJECT <= seconds:
        gc.collect()


def _trim_torch(torch: Any) -> None:
    if torch is None or not torch.cuda.is_initialized():
        return
    cuda = torch.cuda
    used = [device for device in range(cuda.device_count()) if cuda.memory_reserved(device)]
    # Freeing waits for the GPU's running work.
    if used and all(cuda.current_stream(device).query() for device in used):
        cuda.empty_cache()


def _trim_cupy(cupy: Any) -> None:
    # If no GPU is in use, the pool itself would initialize CUDA.
    if cupy is None or not devices_in_use():
        return
    # These are the pools of the current device; their free bytes show whether it is in use.
    pool, pinned = cupy.get_default_memory_pool(), cupy.get_default_pinned_memory_pool()
    if pool.free_bytes() and cupy.cuda.get_current_stream().done:
        pool.free_all_blocks()
    if pinned.n_free_blocks():
        pinned.free_all_blocks()


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
