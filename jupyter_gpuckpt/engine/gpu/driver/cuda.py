"""The CUDA driver's checkpoint functions, which move a process's GPU memory to its RAM and back, and hold its CUDA calls.

Covers: the calls, by the package cuda-bindings, and the meaning of their errors. Does not cover: where the memory goes
(`gpu_staging.py`), forked children (`release.py`), peer access (the agent in the kernel switches it off before).

    RUNNING --lock--> LOCKED --checkpoint--> CHECKPOINTED --restore--> LOCKED --unlock--> RUNNING

All pids are host pids. The driver does the work of Checkpoint and Restore in one thread of the process (`restore_thread`), so
that process must not be stopped (T) meanwhile. The driver must be at least `gpu.MINIMUM_DRIVER`, or 580 to move memory to another
GPU. Reference: CUDA Driver API, "Checkpointing".
"""

from __future__ import annotations

import ctypes
import logging
import threading
import uuid
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from types import ModuleType
from typing import Any

from ....errors import CheckpointError, FreezeFailed, HostIncompatible, ThawFailed, ToolMissing
from ....host import gpu, processes
from .release import DEVICES

logger = logging.getLogger(__name__)

#: The version that the oldest usable driver (`gpu.MINIMUM_DRIVER`) reports by cuDriverGetVersion.
_OLDEST_CUDA = 12080
_once = threading.Lock()
_found: list[tuple[ModuleType | None, str]] = []

_DOCTOR = "Run `jupyter gpuckpt doctor`."
_RUNS_ON = "The kernel runs on as before."
_NO_SUPPORT = (
    "It uses managed memory (cudaMallocManaged), memory shared with another process, or MIG or MPS, which the driver "
    "cannot checkpoint."
)
#: RAPIDS uses managed memory by default where the GPU supports it.
_WITHOUT_MANAGED = (
    "With RAPIDS, set CUDF_PANDAS_RMM_MODE=async in the kernel's environment (cudf.pandas), or call"
    " rmm.reinitialize(managed_memory=False) first."
)
#: (cause, hint) by the driver's error, and by step where one error has several meanings.
_MEANINGS: dict[str, tuple[str, str]] = {
    "lock CUDA_ERROR_NOT_READY": (
        "GPU work that was still running did not end in time.",
        "Wait for the computation or interrupt it, then try again.",
    ),
    "checkpoint CUDA_ERROR_NOT_SUPPORTED": (
        _NO_SUPPORT,
        f"Restart the kernel and avoid managed memory. {_WITHOUT_MANAGED}",
    ),
    "checkpoint CUDA_ERROR_UNKNOWN": (
        "The driver gives no reason; it does so for processes that have used managed memory before.",
        f"Restart the kernel to be able to save it. {_WITHOUT_MANAGED} {_RUNS_ON}",
    ),
    "checkpoint CUDA_ERROR_OPERATING_SYSTEM": (
        "A call of the operating system failed inside the driver, also at a second attempt.",
        f"Try again; memory or the limit of open files may be short. {_RUNS_ON}",
    ),
    "restore CUDA_ERROR_INVALID_VALUE": (
        "The GPU map does not fit, or peer access between GPUs was on when the memory was taken.",
        "Resume with as many GPUs of the same model as before; one map entry for each visible GPU.",
    ),
    "restore CUDA_ERROR_OPERATING_SYSTEM": (
        "The process holds GPU memory of another process (CUDA IPC), had peer access between GPUs on, or an earlier attempt failed.",
        "Close shared GPU memory and switch peer access off before saving.",
    ),
    "CUDA_ERROR_OUT_OF_MEMORY": (
        "There is not enough memory: GPU memory to restore, RAM to checkpoint.",
        "Free memory (nvidia-smi shows who holds the GPU's) and try again.",
    ),
    "CUDA_ERROR_ILLEGAL_STATE": ("The process is in another state than this step needs.", _DOCTOR),
    "CUDA_ERROR_NOT_INITIALIZED": (
        "The process has no CUDA context of its own (it ended, or it was forked from one that has).",
        _DOCTOR,
    ),
    "CUDA_ERROR_NOT_SUPPORTED": ("This driver cannot do it for this process.", _DOCTOR),
    "CUDA_ERROR_NOT_PERMITTED": ("The daemon may not do this to the process.", _DOCTOR),
}
_UNTOLD = ("CUDA_ERROR_NOT_PERMITTED", "CUDA_ERROR_NOT_SUPPORTED")
#: Measured with driver 580: a process that has used CUPTI once is refused for good, also after cuptiFinalize() and with TEARDOWN_CUPTI=1.
_PROFILED = (
    "A profiler was used in it (torch.profiler with CUDA activities, CUPTI), after which the driver checkpoints it no more.",
    f"Restart the kernel to be able to save it, and profile in another one; ending the profiler does not help. {_RUNS_ON}",
)


class ProcessState(Enum):
    """The state of a process as the driver reports it; numbers as in CUprocessState."""

    RUNNING = 0
    LOCKED = 1
    CHECKPOINTED = 2
    #: This state is final: the process can only be killed.
    FAILED = 3


def available() -> tuple[bool, str]:
    """Return whether GPU checkpoints can work here, and the reason if not. The result is cached per process; never raises.

    It calls cuInit, which Restore needs. cuInit makes no context, so it takes no GPU memory.
    """
    with _once:
        if not _found:
            _found.append(_find())
        module, reason = _found[0]
    return module is not None, reason


def is_cuda_process(pid: int) -> bool:
    """Return whether a process has a CUDA context of its own; one that only inherited GPU descriptors has none.

    A checkpointed (parked) process has no descriptors, so the result is False; use `state`. GetState alone proves nothing: it
    succeeds for some forked children.
    """
    return holds_gpu(pid) and restore_thread(pid) is not None


def holds_gpu(pid: int) -> bool:
    """Return whether a process has descriptors of GPU devices, its own or inherited."""
    held = processes.descriptors(processes.living_thread(pid)).values()
    return any(path.startswith(DEVICES) for path in held)


def may_be_parked(pid: int) -> bool:
    """Return whether a process has loaded the driver but holds no GPU: it is checkpointed, or never used one (see `state`)."""
    try:
        # The search is in bytes, for speed: every save does it for every process.
        maps = Path(f"/proc/{processes.living_thread(pid)}/maps").read_bytes()
    except OSError:
        return False
    return b"/libcuda.so" in maps and not holds_gpu(pid)


def state(pid: int) -> ProcessState | None:
    """Return the state of a CUDA process; None for another process, or without a driver."""
    if not available()[0]:
        return None
    driver = _driver()
    error, found = driver.cuCheckpointProcessGetState(pid)
    return ProcessState(int(found)) if int(error) == 0 else None


def restore_thread(pid: int) -> int | None:
    """Return the thread (host id) in which the driver does Checkpoint and Restore; None without a CUDA context of its own."""
    if not available()[0]:
        return None
    error, tid = _driver().cuCheckpointProcessGetRestoreThreadId(pid)
    if int(error) != 0:
        return None
    threads = processes.threads(pid)
    if int(tid) in threads:
        return int(tid)
    return next((thread for thread in threads if processes.nspid(thread) == int(tid)), None)


def context_query_error(pid: int) -> str:
    """Return the driver's error if it does not report whether a process has a context of its own; empty if it does.

    The error for a process without a context, or one that has ended, is an answer and not returned.
    """
    error, _ = _driver().cuCheckpointProcessGetRestoreThreadId(pid)
    return error.name if error.name in _UNTOLD else ""


def lock(pid: int, timeout_seconds: float) -> None:
    """Wait for running CUDA calls of the process to end, and hold later ones.

    Raises FreezeFailed after `timeout_seconds`; the process is unlocked then. The driver takes 0 for "no timeout", so it gets
    at least 1 ms.
    """
    driver = _driver()
    arguments = driver.CUcheckpointLockArgs()
    arguments.timeoutMs = max(1, round(timeout_seconds * 1000))
    _check(pid, "lock", driver.cuCheckpointProcessLock(pid, arguments))


def checkpoint(pid: int) -> None:
    """Move the GPU memory of a locked process into its RAM and free the GPU.

    Raises FreezeFailed when the driver refuses. The process is still locked then, and `bring_back` unlocks it unharmed.
    """
    _check(pid, "checkpoint", _driver().cuCheckpointProcessCheckpoint(pid, None))


def was_refused_by_system(error: FreezeFailed) -> bool:
    """Return whether a Checkpoint failed because of a system call, so that a second attempt may work."""
    return error.details.endswith("CUDA_ERROR_OPERATING_SYSTEM")


def restore(pid: int, gpu_map: Mapping[str, str] | None = None) -> None:
    """Move the memory of a checkpointed process back to the GPUs; it is locked afterwards.

    `gpu_map` maps old to new GPU UUIDs ("GPU-..."), one entry for every GPU visible to the driver, all of the same model;
    None or empty: the same GPUs. Raises ThawFailed. Check the free GPU memory before: after CUDA_ERROR_OUT_OF_MEMORY every
    further attempt fails as well, however much is free by then (measured).
    """
    driver = _driver()
    arguments = _moving(driver, gpu_map) if gpu_map else None
    _check(pid, "restore", driver.cuCheckpointProcessRestore(pid, arguments))


def unlock(pid: int) -> None:
    """Let the CUDA calls of a locked process continue. Raises CheckpointError."""
    _check(pid, "unlock", _driver().cuCheckpointProcessUnlock(pid, None))


def bring_back(pid: int, gpu_map: Mapping[str, str] | None = None) -> ProcessState | None:
    """Restore a process if it is checkpointed, unlock it if it is locked; return the state in which it was found.

    It is used at every end of a save, after a refused Checkpoint (measured: this needs Unlock, not Restore), and for recovery after
    a daemon was killed. It leaves a running process alone, and so one in the state FAILED, which can only be killed. Raises
    CheckpointError.
    """
    found = state(pid)
    if found is ProcessState.CHECKPOINTED:
        restore(pid, gpu_map)
    if found in (ProcessState.CHECKPOINTED, ProcessState.LOCKED):
        unlock(pid)
    return found


def _find() -> tuple[ModuleType | None, str]:
    try:
        from cuda.bindings import driver  # noqa: PLC0415 - an optional package; it loads libcuda at its first call
    except ImportError:
        return None, "the package cuda-bindings is not installed"
    try:
        if any(not hasattr(driver, name) for name in gpu.CHECKPOINT_FUNCTIONS):
            return None, "cuda-bindings is too old: 12.8 or newer is needed"
        (error,) = driver.cuInit(0)
    # cuda-bindings raises RuntimeError or a class of its own, by version, where there is no libcuda.
    except Exception as failure:
        logger.debug("no CUDA driver: %s", failure)
        return None, "no NVIDIA driver is installed"
    if int(error) != 0:
        return None, f"the NVIDIA driver finds no usable GPU ({error.name})"
    error, version = driver.cuDriverGetVersion()
    if int(error) != 0 or int(version) < _OLDEST_CUDA:
        return None, f"the NVIDIA driver is older than {gpu.MINIMUM_DRIVER}"
    return driver, ""


def _driver() -> Any:  # noqa: ANN401 - the package carries no types
    usable, reason = available()
    if not usable:
        raise ToolMissing(
            f"GPU memory cannot be saved or restored here: {reason}.",
            hint="pip install 'jupyter-gpuckpt[gpu]' on a machine with an NVIDIA driver of"
            f" {gpu.MINIMUM_DRIVER} or newer.",
        )
    return _found[0][0]


def _moving(driver: Any, gpu_map: Mapping[str, str]) -> Any:  # noqa: ANN401
    """Return the arguments of a Restore to other GPUs."""
    # 12.8 has the class without pairs, 13.0 and 13.3.0 have no such class.
    kind = getattr(driver, "CUcheckpointRestoreArgs", None)
    if kind is None or not hasattr(kind, "gpuPairs"):
        raise HostIncompatible(
            "Moving a kernel to another GPU needs another version of cuda-bindings.",
            hint="pip install 'cuda-bindings>=13.3.1'",
        )
    arguments = kind()
    arguments.gpuPairs = [_pair(driver, old, new) for old, new in gpu_map.items()]
    arguments.gpuPairsCount = len(gpu_map)
    return arguments


def _pair(driver: Any, old: str, new: str) -> Any:  # noqa: ANN401
    pair = driver.CUcheckpointGpuPair()
    pair.oldUuid, pair.newUuid = _uuid(driver, old), _uuid(driver, new)
    return pair


def _uuid(driver: Any, text: str) -> Any:  # noqa: ANN401
    value = driver.CUuuid()
    # The attribute `bytes` of the structure is read-only.
    ctypes.memmove(value.getPtr(), uuid.UUID(text.removeprefix("GPU-")).bytes, 16)
    return value


def _is_profiled(pid: int) -> bool:
    """Return whether a process has loaded CUDA's profiling library; without it no profiler was used."""
    return any("/libcupti" in area.path for area in processes.maps(processes.living_thread(pid)))


def _check(pid: int, step: str, result: tuple[Any, ...]) -> None:
    """Raise the error for `result` of `step`, unless that is success."""
    error = result[0]
    if int(error) == 0:
        return
    kinds = {"lock": FreezeFailed, "checkpoint": FreezeFailed, "restore": ThawFailed}
    name = error.name
    cause, hint = _MEANINGS.get(f"{step} {name}") or _MEANINGS.get(name) or ("", _DOCTOR)
    if name == "CUDA_ERROR_NOT_SUPPORTED" and step == "lock" and _is_profiled(pid):
        cause, hint = _PROFILED
    raise kinds.get(step, CheckpointError)(
        f"The CUDA driver refused to {step} process {pid} ({name}). {cause}".strip(),
        hint=hint,
        details=f"cuCheckpointProcess{step.capitalize()}({pid}) = {name}",
    )
