"""The import of `use_cases`, which a daemon makes before it has a kernel."""

from __future__ import annotations

import gc
import sys

from ..errors import ToolMissing


def load() -> None:
    """Import what saves and resumes need. Raises ToolMissing if that fails, DaemonUnavailable after an upgrade of the package."""
    if f"{__package__}.use_cases" in sys.modules:
        return
    # As at the start, for the same reason (`__main__.py`).
    gc.disable()
    try:
        from . import use_cases  # noqa: F401, PLC0415 - late: see there
    except ImportError as error:
        raise ToolMissing(
            f"What kernels are saved with cannot be imported: {error}",
            hint="Install jupyter_gpuckpt and what it needs again. Kernels are started when that works.",
        ) from error
    else:
        gc.freeze()
    finally:
        gc.enable()
