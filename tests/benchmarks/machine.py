"""What was measured on: processors, memory, versions, GPU. Names of machines and folders are left out."""

from __future__ import annotations

import os
import platform
import re
from importlib import metadata
from pathlib import Path

import msgspec

from jupyter_gpuckpt.host import criu_program, gpu

#: A budget of the pipeline's width holds where there are this many.
WIDE_CORES = 16
#: What the numbers depend on.
PACKAGES = ("jupyter_gpuckpt", "zstandard", "blake3", "numpy", "ipykernel", "pyzmq", "torch")


class Machine(msgspec.Struct, frozen=True):
    """Sizes in GB (10^9 bytes). What there is not is empty."""

    cores: int
    processor: str
    memory_gb: float
    linux: str
    python: str
    criu: str
    packages: dict[str, str]
    gpus: list[str] = []
    driver: str = ""

    def __str__(self) -> str:
        words = [f"{self.cores} cores ({self.processor})", f"{self.memory_gb:.0f} GB"]
        words += [f"Linux {self.linux}", f"CRIU {self.criu}", *self.gpus]
        return ", ".join([*words, f"driver {self.driver}"] if self.driver else words)


def cores() -> int:
    """Return the processors that this process may use."""
    return len(os.sched_getaffinity(0))


def wide(budget: float) -> float | None:
    """Return a budget that holds on 16 cores only; None where there are fewer."""
    return budget if cores() >= WIDE_CORES else None


def thread_counts() -> list[int]:
    """1, 2, 4 ... as far as there are processors, at most 16."""
    return [count for count in (1, 2, 4, 8, 16) if count <= cores()]


def here() -> Machine:
    """Return this machine, now."""
    criu = next(criu_program.candidates(), None)
    return Machine(
        cores=cores(),
        processor=_processor(),
        memory_gb=round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1e9, 1),
        # What follows the numbers names somebody's own build.
        linux=platform.release().split("-")[0],
        python=platform.python_version(),
        criu=criu_program.dotted(criu_program.version(criu)) if criu else "",
        packages={name: version for name in PACKAGES if (version := _version(name))},
        gpus=[device.name for device in gpu.gpus()],
        driver=gpu.driver_version(),
    )


def _processor() -> str:
    match = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return match[1].strip() if match else platform.machine()


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""
