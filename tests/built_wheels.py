"""The wheels that `make wheels` builds, for tests."""

from __future__ import annotations

import functools
import importlib.util
import subprocess
import sys
from pathlib import Path

from tests.conftest import missing

ROOT = Path(__file__).parent.parent


@functools.cache
def all_of_them() -> tuple[Path, Path]:
    """Return the wheels of the project and of CRIU in dist/, from this checkout's sources."""
    if importlib.util.find_spec("ziglang") is None:
        missing("wheels", "ziglang is not installed: pip install -e '.[wheels]'")
    done = subprocess.run(
        [sys.executable, ROOT / "tools/wheels.py", ROOT / "dist"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    project, criu = map(Path, done.stdout.splitlines())
    return project, criu
