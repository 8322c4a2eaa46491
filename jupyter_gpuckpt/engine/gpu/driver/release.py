"""Release of inherited GPU descriptors and mappings in a child that a CUDA process forked.

A forked child (DataLoader worker, multiprocessing pool) inherits about 30 descriptors and 30 mappings of /dev/nvidia* which
it can never use, because CUDA does not survive a fork, and which CRIU cannot dump. Never release the CUDA process itself: the
driver's Checkpoint closes its descriptors.
"""

from __future__ import annotations

from typing import NamedTuple

from ....errors import FreezeFailed
from ....host import processes
from ...injection.threads_held import ThreadsHeld
from ...injection.tracee import Tracee

DEVICES = "/dev/nvidia"
_NR_CLOSE, _NR_MUNMAP = 3, 11


class Released(NamedTuple):
    """The numbers of descriptors that were closed and of mappings that were removed."""

    descriptors: int
    mappings: int


def release(pid: int, *, devices: str = DEVICES) -> Released:
    """Close the descriptors and unmap the mappings of files below `devices` in process `pid`.

    All its threads are held meanwhile, so that nothing is opened or closed in between; afterwards the process runs, or is
    stopped (T), as before. A process without such files is not held at all. Raises CheckpointError when it cannot be stopped,
    FreezeFailed when a call fails; earlier releases are not undone, which does no harm.
    """
    tid = processes.living_thread(pid)
    if not _descriptors(tid, devices) and not _mappings(tid, devices):
        return Released(0, 0)
    with ThreadsHeld(pid, return_frame=True) as held:
        if not held.tids:
            return Released(0, 0)  # it ended
        return _release(held.tracee(), devices)


def _release(tracee: Tracee, devices: str) -> Released:
    """Release the files of a held process; the lists are read only now, when they cannot change."""
    mappings, descriptors = _mappings(tracee.tid, devices), _descriptors(tracee.tid, devices)
    try:
        for start, end in mappings:
            tracee.syscall(_NR_MUNMAP, start, end - start)
        for fd in descriptors:
            tracee.syscall(_NR_CLOSE, fd)
    except ProcessLookupError:
        return Released(0, 0)  # it was killed meanwhile
    except OSError as error:
        raise FreezeFailed(
            "A child process could not be freed from the GPU descriptors that it inherited.",
            hint="End the process (a DataLoader's workers, a pool) and save again.",
            details=f"process {tracee.pid}: {error}",
        ) from error
    return Released(len(descriptors), len(mappings))


def _descriptors(tid: int, devices: str) -> list[int]:
    return [fd for fd, path in processes.descriptors(tid).items() if path.startswith(devices)]


def _mappings(tid: int, devices: str) -> list[tuple[int, int]]:
    return [(area.start, area.end) for area in processes.maps(tid) if area.path.startswith(devices)]
