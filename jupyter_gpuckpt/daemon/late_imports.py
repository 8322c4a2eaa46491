"""The import of `late_modules`, which a daemon makes before it has a kernel."""

from __future__ import annotations

import gc
import sys

from ..errors import ToolMissing


def load() -> None:
    """Import what saves and resumes need. Raises ToolMissing if that fails, DaemonUnavailable after an upgrade of the package."""
    is_new = f"{__package__}.late_modules" not in sys.modules
    if is_new:  # as at the start, for the same reason (`__main__.py`)
        gc.disable()
    try:
        # Where another thread is importing it, this waits for the end.
        from . import late_modules  # noqa: F401, PLC0415 - late: see there
    except ImportError as error:
        raise ToolMissing(
            f"The modules that save kernels cannot be imported: {error}",
            hint="Install jupyter_gpuckpt and what it needs again. Kernels are started when that works.",
        ) from error
    finally:
        gc.enable()
    if is_new:
        gc.freeze()
