"""The trial of the ferry on this machine: made in a process of its own, once for each boot, driver and library, and remembered.

Where the trial fails, kernels are started without the ferry. Does not cover: what is tried (`trial_program.py`), how long a kernel's start
waits (`daemon/kernels/ferry_choice.py`).
"""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import msgspec

from ....host import commands, gpu, trial_memory
from ....wire import decoding
from ....wire.deadlines import boot_id
from ...tree import ferry_library

_PROGRAM = f"{__package__}.trial_program"
#: The variable with the folder of the library's socket; the library removes its own from the environment.
FOLDER = "GPUCKPT_FERRY_TRIAL"
#: A driver may take seconds to start on a machine with many GPUs.
_SECONDS = 60.0


class Outcome(msgspec.Struct, frozen=True):
    """The outcome of a trial: the ferry works or not, or None: that could not be found out now. `reason`: if it does not work."""

    works: bool | None
    reason: str = ""


def remembered() -> Outcome | None:
    """Return the outcome of the last trial under the present circumstances; None if there was none."""
    with suppress(OSError, msgspec.DecodeError):
        return decoding.from_json(_memory(gpu.driver_version()).read_bytes(), Outcome)
    return None


def made() -> Outcome | None:
    """Make a trial, remember its outcome, and return it. None: there is no NVIDIA driver. It takes seconds; never raises."""
    version = gpu.driver_version()
    if not version:
        return None
    if int(version.split(".")[0]) < gpu.MINIMUM_DRIVER:
        return Outcome(False, f"NVIDIA driver {version} cannot save GPU memory")
    try:
        found = _tried()
        if found.works is not None:  # else the next trial may say more
            trial_memory.remember(_memory(version), msgspec.json.encode(found))
    except OSError as error:  # the disk is full, or the library is not there
        return Outcome(None, f"it could not be tried: {error}")
    return found


def _memory(version: str) -> Path:
    """Return the path of the file with the outcome of a trial under the present circumstances."""
    return trial_memory.file(
        "ferry-trials",
        [
            [boot_id(), version, [each.uuid for each in gpu.gpus()]],
            [os.environ.get(name) for name in ("CUDA_VISIBLE_DEVICES", "LD_LIBRARY_PATH")],
            [os.getuid(), hashlib.blake2b(ferry_library.LIBRARY.read_bytes()).hexdigest()],
        ],
    )


def _tried() -> Outcome:
    with tempfile.TemporaryDirectory(prefix="gpuckpt-", dir=_short_folder()) as folder:
        env = {**os.environ, FOLDER: folder}
        env = ferry_library.environment(env, library=str(ferry_library.LIBRARY), directory=folder)
        try:
            done = commands.run([sys.executable, "-P", "-m", _PROGRAM], timeout=_SECONDS, env=env)
            return decoding.from_json(done.stdout.encode(), Outcome)
        except (commands.CommandFailed, msgspec.DecodeError) as error:
            return Outcome(False, f"the trial did not end well: {error}")


def _short_folder() -> str | None:
    """Return a folder with a short path, as sockets need; None: that of temporary files."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK | os.X_OK) else None  # noqa: S108 - a folder of its own is made there
