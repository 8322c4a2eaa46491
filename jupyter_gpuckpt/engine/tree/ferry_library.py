"""Loading of the ferry library (engine/gpu/ferry/ferry.c) into kernels (`LaunchSpec.gpu_copy`).

Does not cover: the orders that the daemon gives the library (`engine/gpu/ferry/ferry.py`).
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from ...wire.manifest_records import SCRATCH

LIBRARY = Path(__file__).parents[1] / "gpu/ferry/gpu-ferry.so"
#: The library's place on the kernel's own scratch tmpfs; a snapshot contains it.
INSIDE = f"{SCRATCH}/{LIBRARY.name}"
#: The folder of the sockets on which the library's threads listen; the name of each is its process's pid in the kernel's namespace.
DIRECTORY = f"{SCRATCH}/ferry"
_VARIABLE = "GPUCKPT_FERRY"
_PRELOADED = "LD_PRELOAD"


def environment(
    env: Mapping[str, str], *, library: str = INSIDE, directory: str = DIRECTORY
) -> dict[str, str]:
    """Return `env` with the library preloaded; the library removes itself from it before the program sees it."""
    return {
        **env,
        _PRELOADED: ":".join(filter(None, [env.get(_PRELOADED, ""), library])),
        _VARIABLE: directory,
    }


def install(root: Path) -> None:
    """Copy the library to the place that `environment` names, below `root`, the kernel's root directory as seen from here."""
    target = root / INSIDE.lstrip("/")
    shutil.copyfile(LIBRARY, target)
    target.chmod(0o755)
