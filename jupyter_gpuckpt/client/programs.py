"""Programs of this package that the client runs in processes of their own."""

from __future__ import annotations

import sys

#: The hint if such a program cannot be run, or its output cannot be read.
REINSTALL = (
    "Install jupyter-gpuckpt again: a part of it is missing, or was made for another Python."
)


def command(module: str) -> list[str]:
    """Return the command line that runs a module of this package with this interpreter."""
    # -P: a module in the caller's directory must not shadow one of this package.
    return [sys.executable, "-P", "-m", f"jupyter_gpuckpt.{module}"]
