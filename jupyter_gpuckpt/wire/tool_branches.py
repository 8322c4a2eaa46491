"""The names of branches that tools make (`tools/`): a name tells from which kernel the branch comes, also after both have ended.

Such a branch has no notebook of its own. Its name is that of the original, a mark, and the beginnings of the original's id and its own.
"""

from __future__ import annotations

import re
from typing import Any

_MARK = re.compile(r"-tool-([A-Za-z0-9_.-]{1,8})-[0-9a-f]{4}$")
_ID_CHARACTERS, _OWN_CHARACTERS = 8, 4


def branch_name(name: str, origin_id: str, kernel_id: str) -> str:
    """Return the name of a tool's branch, from a snapshot of the kernel `origin_id` called `name`, which may be a branch itself."""
    original = origin_of(name, origin_id)
    return f"{_MARK.sub('', name)}-tool-{original}-{kernel_id[:_OWN_CHARACTERS]}"


def is_tool_branch(name: str) -> bool:
    """Return whether a kernel of this name is a tool's branch."""
    return bool(_MARK.search(name))


def origin_of(name: str, kernel_id: str) -> str:
    """Return the beginning of the id of the kernel from which a tool's branch comes; of any other kernel of its own id."""
    found = _MARK.search(name)
    return found[1] if found else kernel_id[:_ID_CHARACTERS]


def is_branch_of(name: str, kernel_id: str) -> bool:
    """Return whether a kernel called `name` is a tool's branch that comes from this kernel."""
    return is_tool_branch(name) and origin_of(name, "") == kernel_id[:_ID_CHARACTERS]


def console_row(session_id: str, name: str, kernel_id: str) -> dict[str, Any]:
    """Return Jupyter's session of a tool's branch: pages list it as a console, which needs no file."""
    short = name.rpartition("/")[2]
    return {
        "session_id": session_id,
        "path": name,
        "name": short,
        "type": "console",
        "kernel_id": kernel_id,
    }
