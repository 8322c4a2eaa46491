"""What a trial leaves: a line for the reader, and one of JSON in the file that GPUCKPT_MATRIX_LINES names."""

from __future__ import annotations

import functools
import os
import platform
import subprocess
import time
from importlib import metadata
from pathlib import Path

import msgspec

from jupyter_gpuckpt.engine.gpu.driver import cuda
from jupyter_gpuckpt.host import criu_program, gpu

VARIABLE = "GPUCKPT_MATRIX_LINES"

#: What is named on the page -> packages that bring it.
FRAMEWORKS = {
    "PyTorch": ("torch",),
    "Triton": ("triton",),
    "CuPy": ("cupy-cuda13x", "cupy-cuda12x", "cupy"),
    "JAX": ("jax",),
    "cuda-bindings": ("cuda-bindings",),
}


class Line(msgspec.Struct):
    """One trial of a row. Times in seconds, as who asked saw them, in the order in which they were done."""

    row: str
    title: str
    gpus: int
    #: works | refused | fails | not run
    outcome: str = "works"
    #: Why it does not work.
    reason: str = ""
    seconds: dict[str, list[float]] = {}
    #: The most that an operation took off the GPUs.
    gpu_bytes: int = 0
    #: How many bytes of a snapshot are by the ferry.
    ferry_bytes: int = 0
    #: Until the kernel and its twin had begun, imports included.
    begin_seconds: float = 0.0
    #: Seconds since the epoch.
    time: float = 0.0
    machine: dict[str, str] = {}


def keep(line: Line) -> None:
    """Print it, and append it to the file."""
    line.time, line.machine = time.time(), machine()
    spent = ", ".join(f"{verb} {times}" for verb, times in line.seconds.items())
    print(
        f"matrix: {line.row}, {line.gpus} GPU(s): {line.outcome}",
        *filter(None, (line.reason, spent)),
        f"{line.gpu_bytes / 1e9:.2f} GB on the GPU, begun in {line.begin_seconds} s",
        sep="; ",
    )
    if path := os.environ.get(VARIABLE):
        # One write: several processes append.
        with Path(path).open("ab", buffering=0) as file:
            file.write(msgspec.json.encode(line) + b"\n")


def read(path: Path) -> list[Line]:
    """Return the lines of a file."""
    return [msgspec.json.decode(line, type=Line) for line in path.read_bytes().splitlines()]


@functools.cache
def machine() -> dict[str, str]:
    """Return what the results depend on."""
    models = sorted({device.name for device in gpu.gpus()})
    found = {
        "GPU": ", ".join(models),
        "Driver": gpu.driver_version(),
        "CUDA": _cuda_version(),
        "Linux": platform.release(),
        "CRIU": _criu_version(),
        "Python": platform.python_version(),
    }
    for name, packages in FRAMEWORKS.items():
        found[name] = next(filter(None, map(_version, packages)), "")
    return {name: text for name, text in found.items() if text}


def _cuda_version() -> str:
    """Return the driver's; empty without one."""
    if not cuda.available()[0]:
        return ""
    from cuda.bindings import driver  # noqa: PLC0415 - absent where there is no GPU

    _, number = driver.cuDriverGetVersion()
    return f"{number // 1000}.{number % 1000 // 10}"


def _criu_version() -> str:
    found = criu_program.find()
    if found is None:
        return ""
    said = subprocess.run([found, "--version"], capture_output=True, text=True, check=False).stdout
    return said.removeprefix("Version:").split()[0] if said else ""


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""
