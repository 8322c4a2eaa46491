"""Programs of this package that a process starts for itself."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping

from ..wire.protocol import installed_version, package_version
from . import commands


def spawn(
    module: str, *, stdin: int, env: Mapping[str, str] = os.environ
) -> subprocess.Popen[bytes]:
    """Start a module of this package as a program; the caller stops it by `commands.stop`.

    Raises CommandFailed if it cannot be started, and after an upgrade of the package: it would be the new version's program, whose
    messages may differ from those of this process.
    """
    running, installed = package_version(), installed_version()
    if installed != running:
        raise commands.CommandFailed(
            module, 127, f"jupyter_gpuckpt was upgraded from {running} to {installed} meanwhile"
        )
    return commands.spawn([sys.executable, "-P", "-m", module], stdin=stdin, env=env)
