"""The GPUs of this machine, as the driver reports them through NVML (the library of nvidia-smi).

A machine without an NVIDIA driver, or with one that does not answer, has no GPUs: nothing here
raises. NVML does not create a CUDA context, so it uses no GPU memory.
"""

from __future__ import annotations

import ctypes
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection
from typing import Any, TypeVar

from ..wire.manifest_records import Gpu
from . import privileges

logger = logging.getLogger(__name__)

_Answer = TypeVar("_Answer")

#: The first driver that lets programs checkpoint other processes (CUDA 12.8).
MINIMUM_DRIVER = 570
#: NVML, which comes with the driver.
LIBRARY = "libnvidia-ml.so.1"
#: The version of cuda-bindings that is needed.
CHECKPOINT_FUNCTIONS = tuple(
    f"cuCheckpointProcess{name}"
    for name in ("Lock", "Checkpoint", "Restore", "Unlock", "GetState", "GetRestoreThreadId")
)
#: Seconds until NVML is tried again after it did not work: a driver may be loaded later.
RETRY_SECONDS = 30.0
#: The period over which a process's use of a GPU is measured.
UTILIZATION_SECONDS = 5.0
#: The relative difference in memory up to which GPUs of one model count as equal: ECC and driver change it by a few MB.
_SAME_SIZE = 0.02


class _Library:
    """A loader of NVML: initializes it at the first use, which may take a second, and keeps it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._module: Any = None
        self._failed_at = -RETRY_SECONDS
        self.reason = ""

    def get(self) -> Any:  # noqa: ANN401 - the module pynvml, which has no types
        """Return the initialized module `pynvml`; None without a working driver."""
        with self._lock:
            if self._module is None and time.monotonic() - self._failed_at >= RETRY_SECONDS:
                try:
                    # Most machines without a GPU lack it, and need not import a large module.
                    ctypes.CDLL(LIBRARY)
                    import pynvml  # noqa: PLC0415

                    pynvml.nvmlInit()
                except Exception as error:  # a broken driver counts as none
                    self._failed_at = time.monotonic()
                    self.reason = f"{type(error).__name__}: {error}"
                    logger.debug("NVML cannot be used: %s", self.reason)
                else:
                    self._module, self.reason = pynvml, ""
            return self._module


_library = _Library()


def unavailable_reason() -> str:
    """Return the reason why NVML does not answer, as technical text; empty when it does."""
    _library.get()
    return _library.reason


def driver_version() -> str:
    """Return the version of the NVIDIA driver, like `580.159.04`; empty without one."""
    nvml = _library.get()
    try:
        return str(nvml.nvmlSystemGetDriverVersion()) if nvml else ""
    except nvml.NVMLError as error:
        logger.warning("The NVIDIA driver does not report its version: %s", error)
        return ""


def gpus() -> list[Gpu]:
    """Return the GPUs that this process may use, in the driver's order."""
    return _answers(
        lambda nvml, handle: Gpu(
            uuid=str(nvml.nvmlDeviceGetUUID(handle)),
            name=str(nvml.nvmlDeviceGetName(handle)),
            memory_bytes=int(nvml.nvmlDeviceGetMemoryInfo(handle).total),
        )
    )


def free_bytes() -> dict[str, int]:
    """Return the free memory of every GPU, by UUID."""
    return dict(
        _answers(
            lambda nvml, handle: (
                str(nvml.nvmlDeviceGetUUID(handle)),
                int(nvml.nvmlDeviceGetMemoryInfo(handle).free),
            )
        )
    )


def described(device: Gpu) -> str:
    """Return the model of a GPU as a text for users."""
    return f"{device.name} ({device.memory_bytes / 1e9:.0f} GB)"


def same_model(first: Gpu, second: Gpu) -> bool:
    """Return whether memory of one GPU can be restored to the other."""
    smaller, larger = sorted((first.memory_bytes, second.memory_bytes))
    return first.name == second.name and larger - smaller <= _SAME_SIZE * larger


def memory_of(pids: Collection[int]) -> dict[int, int]:
    """Return, for those of `pids` that use a GPU, their bytes of memory on all GPUs together, contexts included."""
    used = Counter[int]()
    for by_process in _used().values():
        used.update({pid: count for pid, count in by_process.items() if pid in pids})
    return dict(used)


def used_by(pid: int) -> dict[str, int]:
    """Return the bytes that a process has on each GPU, by UUID, contexts included; empty if the driver does not list it."""
    return {uuid: held[pid] for uuid, held in _used().items() if pid in held}


def names_every_context() -> bool:
    """Return whether a process that the driver does not list surely has no context: then an empty `used_by` means none.

    It is False in a PID namespace of its own, where listed pids mean other processes; with a GPU in MIG mode, whose parts have
    lists of their own; and where a GPU does not answer.
    """
    nvml = _library.get()
    if not nvml or not privileges.sees_whole_machine():
        return False
    for handle in _handles(nvml):
        try:
            nvml.nvmlDeviceGetComputeRunningProcesses(handle)
            if is_partitioned(str(nvml.nvmlDeviceGetUUID(handle))):
                return False
        except nvml.NVMLError as error:
            logger.debug("A GPU does not list its processes: %s", error)
            return False
    return True


def utilization_of(pids: Collection[int]) -> dict[int, int] | None:
    """Return the utilization in percent for those of `pids` that used a GPU in the last seconds; None if it is not known.

    It is the share of time in which CUDA kernels of the process ran (`smUtil`), on the GPU that it uses most. It is not known
    without an NVIDIA driver, or if the driver does not count by process (MIG, GeForce under WDDM).
    """
    nvml = _library.get()
    if not nvml:
        return None
    since = int((time.time() - UTILIZATION_SECONDS) * 1e6)
    found: dict[int, int] = {}
    known = False
    for handle in _handles(nvml):
        try:
            samples = nvml.nvmlDeviceGetProcessUtilization(handle, since)
        except nvml.NVMLError as error:
            # No samples: no process used this GPU.
            known |= error.value == nvml.NVML_ERROR_NOT_FOUND
            continue
        known = True
        for sample in samples:
            if sample.pid in pids:
                found[sample.pid] = max(found.get(sample.pid, 0), min(int(sample.smUtil), 100))
    return found if known else None


def shares_by_mps(pid: int) -> bool:
    """Return whether the process uses a GPU through NVIDIA's Multi-Process Service."""
    nvml = _library.get()
    return bool(nvml) and any(
        pid in {process.pid for process in _listed(nvml, handle, "MPSComputeRunningProcesses")}
        for handle in _handles(nvml)
    )


def is_partitioned(uuid: str) -> bool:
    """Return whether a GPU is in MIG mode, partitioned into instances."""
    nvml = _library.get()
    if not nvml:
        return False
    try:
        mode, _ = nvml.nvmlDeviceGetMigMode(nvml.nvmlDeviceGetHandleByUUID(uuid))
    except nvml.NVMLError:  # a GPU without MIG
        return False
    return bool(mode)


def _used() -> dict[str, dict[int, int]]:
    """Return for every GPU, by UUID, the memory of each process that has a context on it.

    The driver reports pids of the machine's initial PID namespace: a daemon in a container with a PID
    namespace of its own does not find its processes.
    """

    def used(nvml: Any, handle: Any) -> tuple[str, dict[int, int]]:  # noqa: ANN401 - the module pynvml
        running = _listed(nvml, handle, "ComputeRunningProcesses")
        # usedGpuMemory is None where the driver does not count memory by process (MIG, WDDM).
        held = {process.pid: process.usedGpuMemory or 0 for process in running}
        return str(nvml.nvmlDeviceGetUUID(handle)), held

    return dict(_answers(used))


def _answers(ask: Callable[[Any, Any], _Answer]) -> list[_Answer]:
    """Return what `ask` returns for NVML and each GPU; a GPU that does not answer is left out."""
    nvml = _library.get()
    found = []
    for handle in _handles(nvml) if nvml else ():
        try:
            found.append(ask(nvml, handle))
        except nvml.NVMLError as error:
            logger.warning("A GPU does not answer: %s", error)
    return found


def _listed(nvml: Any, handle: Any, kind: str) -> list[Any]:  # noqa: ANN401 - the module pynvml
    try:
        return list(getattr(nvml, f"nvmlDeviceGet{kind}")(handle))
    except nvml.NVMLError as error:
        logger.debug("A GPU does not list its processes (%s): %s", kind, error)
        return []


def _handles(nvml: Any) -> list[Any]:  # noqa: ANN401 - the module pynvml
    handles = []
    try:
        for index in range(nvml.nvmlDeviceGetCount()):
            handles.append(nvml.nvmlDeviceGetHandleByIndex(index))  # noqa: PERF401 - keeps the rest
    except nvml.NVMLError as error:
        logger.warning("The GPUs cannot be listed: %s", error)
    return handles
