"""What stands for the modules cuda.bindings.driver and pynvml on a machine without a GPU: the driver's states and its errors.

Nothing of ours is replaced above these two. The processes are real ones (scripted_cuda.c): what the driver does inside of them
they do themselves, with the same calls in one thread.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import IntEnum
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

from jupyter_gpuckpt.host import processes


class Error(IntEnum):
    """CUresult, as far as it is needed."""

    CUDA_SUCCESS = 0
    CUDA_ERROR_INVALID_VALUE = 1
    CUDA_ERROR_OUT_OF_MEMORY = 2
    CUDA_ERROR_NOT_INITIALIZED = 3
    CUDA_ERROR_OPERATING_SYSTEM = 304
    CUDA_ERROR_ILLEGAL_STATE = 401
    CUDA_ERROR_NOT_READY = 600
    CUDA_ERROR_NOT_SUPPORTED = 801
    CUDA_ERROR_NOT_PERMITTED = 800
    CUDA_ERROR_UNKNOWN = 999


RUNNING, LOCKED, CHECKPOINTED, FAILED = range(4)
#: What each step is done in, and what it leads to.
STEPS = {
    "Lock": (RUNNING, LOCKED),
    "Checkpoint": (LOCKED, CHECKPOINTED),
    "Restore": (CHECKPOINTED, LOCKED),
    "Unlock": (LOCKED, RUNNING),
}


class Memory(NamedTuple):
    """What the driver knows of processes: their states, and what they had on the GPUs, both by pid."""

    states: dict[int, int]
    taken: dict[int, dict[str, int]]


class LockArguments:
    timeoutMs = 0  # noqa: N815 - cuda-bindings' name


class RestoreArguments:
    gpuPairs: tuple[Pair, ...] = ()  # noqa: N815 - cuda-bindings' names
    gpuPairsCount = 0  # noqa: N815


class Uuid:
    def __init__(self):
        self._memory = ctypes.create_string_buffer(16)

    def getPtr(self):  # noqa: N802 - cuda-bindings' name
        return ctypes.addressof(self._memory)

    def __str__(self):
        return f"GPU-{uuid.UUID(bytes=self._memory.raw)}"


class Pair:
    oldUuid: Uuid  # noqa: N815 - cuda-bindings' names
    newUuid: Uuid  # noqa: N815


class ScriptedDriver:
    """A fake of the driver's checkpoint functions, for processes whose behavior is scripted.

    `calls`: each step as (step, pid in its own namespace), in the order in which they began. Processes without files in
    `folder` have no context, as a forked child has none.
    """

    CUcheckpointLockArgs = LockArguments
    CUcheckpointRestoreArgs = RestoreArguments
    CUcheckpointGpuPair = Pair
    CUuuid = Uuid

    def __init__(self, folder: Path, nvml: ScriptedNvml) -> None:
        self.calls: list[tuple[str, int]] = []
        self.timeouts: list[int] = []
        self.maps: list[dict[str, str]] = []
        self.states: dict[int, int] = {}
        #: (step, pid) -> the error, and the state that it leaves, if another than before.
        self.failures: dict[tuple[str, int], tuple[Error, int | None]] = {}
        #: Those of the failures that happen once only.
        self.once: set[tuple[str, int]] = set()
        #: The error for processes of which it does not tell whether it knows them.
        self.untold: dict[int, Error] = {}
        #: How far the user's code of a process came during a Restore.
        self.ticks_in_restore: list[int] = []
        self._folder, self._nvml = folder, nvml
        #: What each process that is checkpointed had on the GPUs.
        self._taken: dict[int, dict[str, int]] = {}
        self._lock = threading.Lock()

    def cuInit(self, flags):  # noqa: N802 - cuda-bindings' names, here and below
        self.calls.append(("Init", flags))
        return (Error.CUDA_SUCCESS,)

    def cuDriverGetVersion(self):  # noqa: N802
        return Error.CUDA_SUCCESS, 13000

    def cuCheckpointProcessLock(self, pid, arguments):  # noqa: N802
        self.timeouts.append(arguments.timeoutMs)
        return (self._step("Lock", pid),)

    def cuCheckpointProcessCheckpoint(self, pid, arguments):  # noqa: N802
        assert arguments is None
        return (self._step("Checkpoint", pid),)

    def cuCheckpointProcessRestore(self, pid, arguments):  # noqa: N802
        pairs = arguments.gpuPairs if arguments else ()
        assert arguments is None or arguments.gpuPairsCount == len(pairs)
        gpu_map = {str(pair.oldUuid): str(pair.newUuid) for pair in pairs}
        self.maps.append(gpu_map)
        before = self.ticks(pid)
        error = self._step("Restore", pid, gpu_map)
        self.ticks_in_restore.append(self.ticks(pid) - before)
        return (error,)

    def cuCheckpointProcessUnlock(self, pid, arguments):  # noqa: N802
        assert arguments is None
        return (self._step("Unlock", pid),)

    def cuCheckpointProcessGetState(self, pid):  # noqa: N802
        number = processes.nspid(pid)
        if not self._is_known(number):
            return Error.CUDA_ERROR_NOT_INITIALIZED, 0
        return Error.CUDA_SUCCESS, self.states.setdefault(number, RUNNING)

    def cuCheckpointProcessGetRestoreThreadId(self, pid):  # noqa: N802
        if error := self.untold.get(processes.nspid(pid)):
            return error, 0
        if not self._is_known(processes.nspid(pid)):
            return Error.CUDA_ERROR_NOT_INITIALIZED, 0
        # It names itself when it begins, which may be a moment after its process is known.
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            for tid in processes.threads(pid):
                if "cuda-driver" in Path(f"/proc/{pid}/task/{tid}/comm").read_text():
                    return Error.CUDA_SUCCESS, tid
            time.sleep(0.001)
        raise AssertionError(f"process {pid} has no thread of the driver's")

    def _is_known(self, number):
        return (self._folder / f"{number}.ticks").exists()

    def _step(self, step: str, pid: int, gpu_map: Mapping[str, str] | None = None) -> Error:
        number = processes.nspid(pid)
        with self._lock:
            self.calls.append((step, number))
            error = self._refusal(step, pid, number, gpu_map or {})
        if error is Error.CUDA_SUCCESS and step in ("Checkpoint", "Restore"):
            error = self._done_inside(number, step)
        if error is Error.CUDA_SUCCESS:
            with self._lock:
                if step == "Checkpoint":
                    self._taken[number] = self._nvml.take(pid)
                self.states[number] = STEPS[step][1]
        return error

    def _refusal(self, step: str, pid: int, number: int, gpu_map: Mapping[str, str]) -> Error:
        if not self._is_known(number):
            return Error.CUDA_ERROR_NOT_INITIALIZED
        if self.states.setdefault(number, RUNNING) != STEPS[step][0]:
            return Error.CUDA_ERROR_ILLEGAL_STATE
        if failure := self.failures.get((step, number)):
            error, left = failure
            if (step, number) in self.once:
                del self.failures[step, number]
            self.states[number] = self.states[number] if left is None else left
            return error
        if gpu_map and set(gpu_map) != set(self._nvml.uuids):
            return Error.CUDA_ERROR_INVALID_VALUE
        if step == "Restore" and not self._nvml.put(pid, self._taken[number], gpu_map):
            self.states[number] = FAILED  # measured: for good
            return Error.CUDA_ERROR_OUT_OF_MEMORY
        return Error.CUDA_SUCCESS

    def _done_inside(self, number: int, step: str) -> Error:
        if self._told(number, step) == b"k":
            return Error.CUDA_SUCCESS
        self.states[number] = FAILED
        return Error.CUDA_ERROR_UNKNOWN

    def memory(self) -> Memory:
        """Return what lies in the processes' memory, and so in a snapshot of them."""
        return Memory(dict(self.states), dict(self._taken))

    def come_back(self, memory: Memory) -> None:
        """Replace the processes by those of a snapshot with this memory."""
        self.states = dict(memory.states)
        self._taken = dict(memory.taken)

    def _told(self, number: int, step: str) -> bytes:
        """Return the answer of the process's driver thread."""
        with _opened(self._folder / f"{number}.ask", os.O_RDWR) as ask:
            os.write(ask, step[:1].lower().encode())
        with _opened(self._folder / f"{number}.answer", os.O_RDWR) as answer:
            return os.read(answer, 1)

    def ticks(self, pid: int) -> int:
        """How far the user's code has counted."""
        return self._counted(pid, 0)

    def rounds(self, pid: int) -> int:
        """How often the process has compared all memory of its ferry."""
        return self._counted(pid, 1)

    def peers(self, pid: int) -> int:
        """Between how many pairs of its contexts the process has peer access."""
        return self._counted(pid, 2)

    def _counted(self, pid: int, which: int) -> int:
        path = self._folder / f"{processes.nspid(pid)}.ticks"
        return int.from_bytes(path.read_bytes()[8 * which :][:8], "little")


@contextmanager
def _opened(path: Path, flags: int) -> Iterator[int]:
    fd = os.open(path, flags)
    try:
        yield fd
    finally:
        os.close(fd)


class NvmlError(Exception):
    """pynvml.NVMLError."""

    value = 0


class ScriptedNvml:
    """GPUs of 10 GB by UUID; `used`: bytes by host pid on each; `others`: what other programs hold there."""

    NVMLError = NvmlError
    NVML_ERROR_NOT_FOUND = 6

    def __init__(self) -> None:
        self.uuids: list[str] = []
        self.used: dict[str, dict[int, int]] = {}
        self.others: dict[str, int] = {}
        #: Host pids that reach their GPU through MPS, and GPUs that are cut into parts.
        self.by_mps: set[int] = set()
        self.in_parts: set[str] = set()

    def add(self, uuid_text: str) -> None:
        self.uuids.append(uuid_text)
        self.used[uuid_text], self.others[uuid_text] = {}, 0

    def take(self, pid: int) -> dict[str, int]:
        """Return what a process holds; it holds nothing any more."""
        return {each: held.pop(pid) for each, held in self.used.items() if pid in held}

    def put(self, pid: int, taken: Mapping[str, int], gpu_map: Mapping[str, str]) -> bool:
        """Give a process memory on the GPUs that the map names; whether there was room."""
        there = {gpu_map.get(each, each): count for each, count in taken.items()}
        if any(self.nvmlDeviceGetMemoryInfo(each).free < count for each, count in there.items()):
            return False
        for each, count in there.items():
            self.used[each][pid] = count
        return True

    def nvmlInit(self):  # noqa: N802 - pynvml's names, here and below
        pass

    def nvmlDeviceGetCount(self):  # noqa: N802
        return len(self.uuids)

    def nvmlDeviceGetHandleByIndex(self, index):  # noqa: N802
        return self.uuids[index]

    def nvmlDeviceGetHandleByUUID(self, handle):  # noqa: N802
        return handle

    def nvmlDeviceGetUUID(self, handle):  # noqa: N802
        return handle

    def nvmlDeviceGetName(self, handle):  # noqa: N802
        return "Scripted 10 GB"

    def nvmlSystemGetDriverVersion(self):  # noqa: N802
        return "580.0"

    def nvmlDeviceGetMemoryInfo(self, handle):  # noqa: N802
        total = 10 << 30
        taken = sum(self.used[handle].values()) + self.others[handle]
        return SimpleNamespace(total=total, free=total - taken)

    def nvmlDeviceGetComputeRunningProcesses(self, handle):  # noqa: N802
        return [SimpleNamespace(pid=p, usedGpuMemory=n) for p, n in self.used[handle].items()]

    def nvmlDeviceGetMPSComputeRunningProcesses(self, handle):  # noqa: N802
        return [SimpleNamespace(pid=pid) for pid in self.by_mps & set(self.used[handle])]

    def nvmlDeviceGetMigMode(self, handle):  # noqa: N802
        if handle not in self.in_parts:
            raise NvmlError  # not every GPU can be
        return 1, 1
