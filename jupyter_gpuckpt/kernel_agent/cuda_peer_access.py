"""Peer access between the GPUs of this process, switched off while the driver moves their memory, and on again afterwards.

If it stays on, the driver's Restore fails for good; other processes cannot see it (measured with driver 580). Libraries switch it
on by themselves: PyTorch at the first copy between two GPUs, NCCL, JAX, CuPy. Only driver calls are used: a failing call of
CUDA's runtime leaves an error behind that PyTorch raises at its next call. Reference: CUDA Driver API, "Peer Context Memory
Access".
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

_LIBRARY = "libcuda.so.1"
#: Results of the calls (cuda.h, CUresult).
_ALREADY_ENABLED, _NOT_ENABLED = 704, 705


class PeerAccess:
    """The switch of this process's peer access; it works whether CUDA is loaded or not. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        #: The devices whose contexts are retained, and the pairs of them between which it was switched off.
        self._kept: list[int] = []
        self._off: list[tuple[int, int]] = []
        #: The number of calls of `on`: an `off` that was waiting for the GPUs before such a call does nothing more.
        self._turns = 0

    @property
    def is_possible(self) -> bool:
        """Return whether there are contexts on several GPUs; it does not wait for a GPU."""
        return len(devices_in_use()) > 1

    @property
    def was_switched(self) -> bool:
        """Return whether peer access was switched off for some pair and not yet on again."""
        return bool(self._off)

    def off(self) -> bool:
        """Wait for the GPUs and switch peer access off wherever it is on; return whether none is left. No cell may run."""
        driver, turn = _driver(), self._turns
        with _retained(driver, _devices(driver)) as contexts:
            for context in contexts.values():
                with _current(driver, context):
                    driver.cuCtxSynchronize()
            with self._lock:
                if turn != self._turns:
                    return False
                if self._kept:
                    return True
                for device in contexts:
                    driver.cuDevicePrimaryCtxRetain(ctypes.byref(ctypes.c_void_p()), device)
                    self._kept.append(device)
                for pair, result in _each_pair(driver, contexts, driver.cuCtxDisablePeerAccess):
                    if result == 0:
                        self._off.append(pair)
                    elif result != _NOT_ENABLED:
                        self._on(driver)
                        return False
        return True

    def on(self) -> bool:
        """Switch peer access on again where it was switched off; return whether all is on. Waits while the driver blocks calls."""
        self._turns += 1
        with self._lock:
            return not self._kept or self._on(_driver())

    def is_on(self) -> bool:
        """Return whether peer access is on for any pair, without disturbing running work.

        No driver call reports it, but switching it on fails if it was on; pairs that were off are switched off again.
        """
        driver = _driver()

        def ask(other: ctypes.c_void_p) -> int:
            result = int(driver.cuCtxEnablePeerAccess(other, 0))
            if result == 0:
                driver.cuCtxDisablePeerAccess(other)
            return result

        with self._lock, _retained(driver, _devices(driver)) as contexts:
            results = [result for _, result in _each_pair(driver, contexts, ask)]
        return _ALREADY_ENABLED in results

    def _on(self, driver: Any) -> bool:
        done = True
        # Contexts are retained again: with handles from before a Restore the call fails with CUDA_ERROR_INVALID_HANDLE (measured).
        with _retained(driver, self._kept) as contexts:
            for one, other in self._off:
                with _current(driver, contexts[one]):
                    result = driver.cuCtxEnablePeerAccess(contexts[other], 0)
                done &= result in (0, _ALREADY_ENABLED)
        for device in self._kept:
            driver.cuDevicePrimaryCtxRelease_v2(device)
        self._kept, self._off = [], []
        return done


def driver_is_loaded() -> bool:
    """Return whether this process has loaded the driver, and so may use a GPU. Makes no driver call."""
    return _driver() is not None


def devices_in_use() -> list[int]:
    """Return the GPUs on which this process has a context. Makes no context, initializes nothing, does not wait for a GPU."""
    return _devices(_driver())


def _driver() -> Any:
    """Return the driver's library if this process has loaded it, else None."""
    try:
        return ctypes.CDLL(_LIBRARY, mode=os.RTLD_NOW | os.RTLD_NOLOAD)
    except OSError:
        return None


def _devices(driver: Any) -> list[int]:
    """Return the devices on which this process has a (primary) context."""
    count, flags, active = ctypes.c_int(), ctypes.c_uint(), ctypes.c_int()
    if driver is None or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return []  # not initialized
    found = []
    for device in range(count.value):
        arguments = device, ctypes.byref(flags), ctypes.byref(active)
        if driver.cuDevicePrimaryCtxGetState(*arguments) == 0 and active.value:
            found.append(device)
    return found


@contextmanager
def _retained(driver: Any, devices: list[int]) -> Iterator[dict[int, ctypes.c_void_p]]:
    """Retain the primary contexts of these devices, and release them afterwards; yield them by device."""
    contexts = {}
    try:
        for device in devices:
            context = ctypes.c_void_p()
            if driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) == 0:
                contexts[device] = context
        yield contexts
    finally:
        for device in contexts:
            driver.cuDevicePrimaryCtxRelease_v2(device)


@contextmanager
def _current(driver: Any, context: ctypes.c_void_p) -> Iterator[None]:
    """Make `context` this thread's context, and restore the previous one afterwards."""
    driver.cuCtxPushCurrent_v2(context)
    try:
        yield
    finally:
        driver.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))


def _each_pair(
    driver: Any, contexts: dict[int, ctypes.c_void_p], call: Callable[[ctypes.c_void_p], int]
) -> Iterator[tuple[tuple[int, int], int]]:
    """Make `call` for every other context, in each context; yield the pair of devices and the result."""
    for one, context in contexts.items():
        with _current(driver, context):
            for other, peer in contexts.items():
                if other != one:
                    yield (one, other), call(peer)
