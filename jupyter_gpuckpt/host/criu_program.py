"""The choice of the CRIU program: the places of the search, and the versions that are new enough."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from . import commands

MINIMUM = (4, 2)
VARIABLE = "JUPYTER_GPUCKPT_CRIU"
TIMEOUT = 20.0


def find() -> Path | None:
    """Return the first of `candidates` that runs and is new enough; None when there is none."""
    return next((path for path in candidates() if usable(version(path))), None)


def candidates() -> Iterator[Path]:
    """Yield the CRIU programs that exist, in order of preference.

    The places are the environment variable JUPYTER_GPUCKPT_CRIU, PATH and the folders of administrators' tools, and
    the distribution jupyter-gpuckpt-criu, which `pip install 'jupyter-gpuckpt[criu]'` installs.
    """
    wanted = [
        os.environ.get(VARIABLE),
        shutil.which("criu", path=commands.search_path()),
        _from_its_wheel(),
    ]
    for path in dict.fromkeys(Path(path).absolute() for path in wanted if path):
        if path.is_file():
            yield path


def _from_its_wheel() -> Path | None:
    try:
        from jupyter_gpuckpt_criu import CRIU  # noqa: PLC0415 - it need not be installed
    except ImportError:
        return None
    return Path(CRIU)


def version(criu: Path) -> tuple[int, ...] | None:
    """Return the version that `criu --version` prints, like (4, 2, 1); None when it does not run."""
    try:
        printed = commands.run([criu, "--version"], timeout=TIMEOUT).stdout
    except commands.CommandFailed:
        return None
    match = re.search(r"Version: (\d+(?:\.\d+)*)", printed)
    return tuple(map(int, match[1].split("."))) if match else None


def usable(version: tuple[int, ...] | None) -> bool:
    """Return whether a program of this version exists and is new enough."""
    return version is not None and version >= MINIMUM


def dotted(version: tuple[int, ...] | None) -> str:
    """Return a version as text."""
    return ".".join(map(str, version)) if version else "does not run"
