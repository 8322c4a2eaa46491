"""The program of a trial of the ferry: it hands GPU memory of its own over, takes it back, and compares it.

    python -m jupyter_gpuckpt.engine.gpu.ferry.trial_program     prints an Outcome as JSON

It runs with the ferry library loaded, and gives the library's thread the orders that the daemon gives for a save. The library has this
process's memory only, so nothing else on the GPUs is touched. Covers: what a GPU and its driver can do. Does not cover: the driver's
Checkpoint, when a trial is made (`ferry_trial.py`).
"""

from __future__ import annotations

import ctypes
import os
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from ....host import gpu
from .ferry_orders import Library, Order, Range, close
from .ferry_trial import FOLDER, Outcome

#: The allocations: two pieces of 2 MB and more, whose ends are no multiple of anything.
_LENGTHS = (6 << 20) + 4099, (2 << 20) + 17
_LIBRARY = "libcuda.so.1"
#: Results of the driver (cuda.h, CUresult) that say nothing of the ferry: the GPU is full, in use, or there is none.
_BUSY = {2: "it is full", 46: "another program has it alone", 100: "there is none"}
#: Attributes of a device (CUdevice_attribute), and what they must be at least.
_NEEDED = {
    75: (7, "its compute capability is less than 7.0"),
    102: (1, "the driver does not manage its virtual memory"),
    103: (1, "its memory cannot be shared by descriptors"),
}
_LISTEN_SECONDS, _ANSWER_SECONDS, _GATE_MS = 5.0, 30.0, 10_000


class DriverError(Exception):
    """A call of the driver failed with this CUresult."""

    def __init__(self, call: str, result: int) -> None:
        super().__init__(f"{call}: CUresult {result}")
        self.result = result


class FailedError(Exception):
    """The ferry does not work here; the text says why."""


class Driver:
    """The driver's functions by their names in cuda.h; each raises DriverError for any result but success."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(_LIBRARY)

    def __getattr__(self, name: str) -> Callable[..., None]:
        function = getattr(self._library, name)

        def call(*arguments: Any) -> None:  # noqa: ANN401 - C's
            if result := function(*arguments):
                raise DriverError(name, result)

        return call


def outcome() -> Outcome:
    """Try each GPU until the trial of one succeeds or fails; return the outcome."""
    present = gpu.gpus()
    if present and all(gpu.is_partitioned(each.uuid) for each in present):
        return Outcome(False, "the GPU is in MIG mode")
    try:
        driver, count = Driver(), ctypes.c_int()
        driver.cuInit(0)
        driver.cuDeviceGetCount(ctypes.byref(count))
    except (DriverError, OSError, AttributeError) as error:
        return Outcome(None, f"CUDA does not start: {error}")
    reason = "this process sees no GPU"
    for device in range(count.value):
        try:
            _try(driver, device)
        except DriverError as error:
            if error.result not in _BUSY:
                return Outcome(False, str(error))
            reason = f"GPU {device} could not be tried: {_BUSY[error.result]}"
        except (FailedError, OSError, AttributeError) as error:
            return Outcome(False, str(error))
        else:
            return Outcome(True)
    return Outcome(None, reason)


def _try(driver: Driver, device: int) -> None:
    """Hand memory on a GPU over and take it back. Raises DriverError, FailedError or OSError."""
    for attribute, (least, why) in _NEEDED.items():
        found = ctypes.c_int()
        driver.cuDeviceGetAttribute(ctypes.byref(found), attribute, device)
        if found.value < least:
            raise FailedError(f"GPU {device}: {why}")
    context = ctypes.c_void_p()
    driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
    driver.cuCtxSetCurrent(context)
    if gpu.shares_by_mps(os.getpid()):
        raise FailedError("the GPU is used through the Multi-Process Service (MPS)")
    contents = [os.urandom(length) for length in _LENGTHS]
    memory = [ctypes.c_uint64() for _ in contents]
    for address, content in zip(memory, contents, strict=True):
        driver.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(len(content)))
        driver.cuMemcpyHtoD_v2(address, content, ctypes.c_size_t(len(content)))
    _wait_for_library()
    with socket.socket(socket.AF_UNIX) as peer:
        peer.settimeout(_ANSWER_SECONDS)
        peer.connect(str(_socket()))
        _hand_over(Library(peer), contents)
    for address, content in zip(memory, contents, strict=True):
        found_bytes = ctypes.create_string_buffer(len(content))
        driver.cuMemcpyDtoH_v2(found_bytes, address, ctypes.c_size_t(len(content)))
        if found_bytes.raw != content:
            raise FailedError("memory that was handed over came back with other bytes")
        driver.cuMemFree_v2(address)


def _wait_for_library() -> None:
    """Wait until the library's thread accepts connections (ferry.c, `obey`)."""
    deadline = time.monotonic() + _LISTEN_SECONDS
    while not (_socket().exists() and _socket().stat().st_mode & 0o400):
        if time.monotonic() > deadline:
            raise FailedError("GPU memory cannot be taken in the form that is handed over")
        time.sleep(0.001)


def _socket() -> Path:
    return Path(os.environ[FOLDER], str(os.getpid()))


def _hand_over(library: Library, contents: list[bytes]) -> None:
    library.order(Order.CLOSE, limit_ms=_GATE_MS)
    listed = library.listed()
    if len(listed) != len(contents):
        raise FailedError("not all GPU memory can be taken in the form that is handed over")
    _check_copies(library, contents, [one.bytes for one in listed])
    descriptors = library.descriptors(0)
    try:
        library.order(Order.UNMAP)
        library.give_back(0, descriptors)
    finally:
        close(descriptors)
    library.open()


def _check_copies(library: Library, contents: list[bytes], lengths: list[int]) -> None:
    """Let the library copy its memory to a file, and compare it."""
    with open(os.memfd_create("gpuckpt-trial", os.MFD_CLOEXEC), "rb") as file:
        ranges = [Range(number, 0, length) for number, length in enumerate(lengths)]
        library.copy(Order.COPY_OUT, [file.fileno()], 0, ranges)
        for content, length in zip(contents, lengths, strict=True):
            if file.read(length)[: len(content)] != content:
                raise FailedError("a copy of GPU memory has other bytes")


if __name__ == "__main__":
    sys.stdout.write(msgspec.json.encode(outcome()).decode())
