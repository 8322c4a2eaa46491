"""An import of httpx without its command line, which takes most of the time of the import: `from .quick_httpx import httpx`.

The command line, `httpx._main`, needs click, rich and pygments. httpx does without it where one of them is not installed.
"""

from __future__ import annotations

import sys
from typing import Any

#: None instead of a module makes its import fail (docs.python.org, the import system).
_modules: dict[str, Any] = sys.modules
_COMMAND_LINE = "httpx._main"

_left_out = "httpx" not in _modules
if _left_out:
    _modules[_COMMAND_LINE] = None
try:
    import httpx
finally:
    if _left_out:
        del _modules[_COMMAND_LINE]

__all__ = ["httpx"]
