"""The errors of the ferry: what was missing, and what the user can do.

The kernel runs on with its memory after each of them, or waits for it without losing it.
"""

from __future__ import annotations

import errno

from ....errors import FreezeFailed, is_disk_full
from .ferry_orders import NoRoomError

_NO_DESCRIPTORS = "There are not enough file descriptors to hand over the kernel's GPU memory."


def from_system(pid: int, error: Exception) -> FreezeFailed:
    """Return the error that fits a failed connection with a process or its init, or a failed answer of theirs."""
    if isinstance(error, NoRoomError):
        return no_room(pid, str(error))
    if isinstance(error, OSError) and error.errno == errno.EMFILE:
        return no_descriptors(pid, str(error))
    if isinstance(error, OSError) and is_disk_full(error):
        return no_memory(pid, str(error))
    return failed(pid, str(error))


def failed(pid: int, details: str) -> FreezeFailed:
    """Return the error for memory that could not be handed over for an unknown cause."""
    return FreezeFailed(
        "The kernel's GPU memory could not be handed over.",
        hint='Save again. If it fails again, set the option `gpu_copy` to "driver" and restart the kernel.',
        details=f"process {pid}: {details}",
    )


def no_memory(pid: int, details: str) -> FreezeFailed:
    """Return the error for a copy of GPU memory that does not fit into RAM."""
    return FreezeFailed(
        "There is no room in memory for a copy of the kernel's GPU memory.",
        hint="Free memory, or end other kernels, and try again.",
        details=f"process {pid}: {details}",
    )


def no_room(pid: int, details: str) -> FreezeFailed:
    """Return the error for memory that does not fit on the GPU when it is given back."""
    return FreezeFailed(
        "The GPU has no room for the kernel's memory: another program has taken it.",
        hint="The kernel's data are safe. Free GPU memory (nvidia-smi shows who holds it), then try again.",
        details=f"process {pid}: {details}",
    )


def lacks_descriptors(error: FreezeFailed) -> bool:
    """Return whether an error is that of `no_descriptors`."""
    return error.message == _NO_DESCRIPTORS


def no_descriptors(pid: int, details: str) -> FreezeFailed:
    """Return the error for a process, its init or this one that may open no more files: a part of the memory is a file to them."""
    return FreezeFailed(
        _NO_DESCRIPTORS,
        hint="Raise the limit of open files (`ulimit -n`) where the server is started, then restart the kernel, or set the"
        ' option `gpu_copy` to "driver".',
        details=f"process {pid}: {details}",
    )
