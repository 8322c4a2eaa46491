"""How tests start Jupyter's programs: as `python -m` starts them, without a second's work that no test needs."""

from __future__ import annotations

import sys

#: jsonschema looks for a package that checks internationalized addresses, and does without it where it is missing. At its
#: import that package builds a grammar, which takes three times as long as all the rest of a server's start; in Jupyter's
#: events no such address is ever checked.
_START = """
import runpy, sys
sys.modules["rfc3987_syntax"] = None
runpy.run_module({module!r}, run_name="__main__", alter_sys=True)
"""


def python_module(module: str) -> list[str]:
    """The beginning of a command that runs the module as a program; its arguments follow."""
    return [sys.executable, "-c", _START.format(module=module)]
