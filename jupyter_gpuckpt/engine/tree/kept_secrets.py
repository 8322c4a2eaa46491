"""A kernel's secrets on its own scratch tmpfs: they exist as long as the kernel, and a snapshot contains them as it does its memory.

They are opaque here (`model.LaunchSpec.secrets`). What is read is not trusted: the kernel can write there.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec

from ... import decoding
from ...model import SCRATCH
from .tree import Tree

INSIDE = f"{SCRATCH}/secrets"
#: The stream of a snapshot that holds them (`engine.capture` names it).
STREAM = f"file{INSIDE}"
MOST_BYTES = 1 << 20


def install(root: Path, secrets: dict[str, Any]) -> None:
    """Write secrets onto the scratch of a kernel. `root`: the path of the kernel's root directory, as seen from here."""
    path = root / INSIDE.lstrip("/")
    path.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(path, flags, 0o600), "wb") as file:
        file.write(msgspec.json.encode(secrets))


def of_tree(tree: Tree) -> dict[str, Any]:
    """Read the secrets of a tree; empty where there are none or they cannot be read."""
    try:
        descriptor = os.open(tree.inside(INSIDE), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as file:
            return decoded(file.read(MOST_BYTES))
    except OSError:
        return {}


def decoded(content: bytes) -> dict[str, Any]:
    """Return the secrets that `install` wrote as `content`; empty if the content is anything else."""
    try:
        return decoding.from_json(content, dict[str, Any])
    except msgspec.DecodeError:
        return {}
