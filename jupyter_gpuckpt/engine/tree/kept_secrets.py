"""A kernel's secrets on its own scratch tmpfs. They exist as long as the kernel, and a snapshot contains them like its memory.

They are opaque here (`manifest_records.LaunchSpec.secrets`). The content is untrusted: the kernel can write there.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec

from ...linux.foreign_files import open_regular
from ...wire import decoding
from ...wire.manifest_records import SCRATCH
from .tree import Tree

INSIDE = f"{SCRATCH}/secrets"
#: The stream of a snapshot that holds the secrets (`engine.capture` names it).
STREAM = f"file{INSIDE}"
MAX_SECRETS_BYTES = 1 << 20


def install(root: Path, secrets: dict[str, Any]) -> None:
    """Write secrets onto the scratch of a kernel. `root`: the path of the kernel's root directory, as seen from here."""
    path = root / INSIDE.lstrip("/")
    path.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(path, flags, 0o600), "wb") as file:
        file.write(msgspec.json.encode(secrets))


def of_tree(tree: Tree) -> dict[str, Any] | None:
    """Return the secrets of a tree; None if there is no file, as in a tree that has just ended."""
    try:
        with os.fdopen(open_regular(tree.inside(INSIDE)), "rb") as file:
            return decoded(file.read(MAX_SECRETS_BYTES))
    except OSError:
        return None


def decoded(content: bytes) -> dict[str, Any]:
    """Decode secrets that `install` wrote; return an empty dict for any other content."""
    try:
        return decoding.from_json(content, dict[str, Any])
    except msgspec.DecodeError:
        return {}
