"""What users are told when another machine has taken a kernel's session over, until they have chosen where its notebook is saved."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

from ...errors import ErrorRecord, record_of
from .kernel_records import KernelRecord, Records
from .kernels import Kernels, ManagedKernel


def note(kernels: Kernels, kernel: ManagedKernel, error: ErrorRecord) -> None:
    """Note that another machine has taken a kernel's session over."""
    kernels.lost_notebooks.note(kernel.record, error.message)
    kernels.update(kernel, error=error, taken_over=error.message)


async def note_lost(kernels: Kernels, records: Records) -> None:
    """Note which kernels another machine that shares this home has taken over although they still run here."""
    for kernel_id, error in (await asyncio.to_thread(records.lost)).items():
        if (kernel := kernels.find(kernel_id)) is not None and not kernel.doomed:
            note(kernels, kernel, record_of(error))


def note_received(kernels: Kernels, record: KernelRecord) -> None:
    """Update the notes of this host for a kernel that this place has just got from another one.

    The other place may have been the one that had taken the kernel over: a note of that is removed. If the record itself tells of a
    machine that has taken the session over, the note is kept or added, for instance when the server is started in another container.
    """
    if record.taken_over:
        kernels.lost_notebooks.note(record, record.taken_over)
    else:
        kernels.lost_notebooks.forget(record)


def describe(
    kernels: Kernels, kernel: ManagedKernel, name: str, jupyter: dict[str, Any]
) -> Awaitable[None]:
    """Replace the description that Jupyter keeps with a kernel: it may be the new kernel of a notebook whose session was taken over."""
    record = kernel.record
    record.name, record.jupyter = name, jupyter
    taken_over = record.taken_over or kernels.lost_notebooks.of(record)
    return kernels.update(kernel, taken_over=taken_over)


def forget(kernels: Kernels, kernel: ManagedKernel) -> Awaitable[None]:
    """Note that a user has chosen where a kernel's notebook is saved."""
    kernels.lost_notebooks.forget(kernel.record)
    return kernels.update(kernel, taken_over="")
