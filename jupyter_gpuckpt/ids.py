"""Ids of kernels, snapshots, operations and owners: parts of paths, of files as of URLs, so not every text can be one."""

from __future__ import annotations

import re

from .errors import (
    ConfigurationError,
    GpuCkptError,
    KernelNotFound,
    OperationNotFound,
    RemoteNotFound,
    SnapshotNotFound,
)

_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")

#: What there is none of where the part of a route that is called so can be no id.
_ERRORS: dict[str, type[GpuCkptError]] = {
    "kernel_id": KernelNotFound,
    "snapshot_id": SnapshotNotFound,
    "operation_id": OperationNotFound,
    "owner_id": ConfigurationError,
    "remote": RemoteNotFound,
}


def is_id(text: str) -> bool:
    """Whether it can be one."""
    return bool(_ID.fullmatch(text))


def require(given: dict[str, str]) -> None:
    """Raise KernelNotFound and its like for a text that is given as an id, by its name, and can be none."""
    for name, text in given.items():
        if not is_id(text):
            raise _ERRORS.get(name, ConfigurationError)(
                f"{text[:200]!r} is not the id of {_article(name.removesuffix('_id'))}.",
                hint="At most 128 letters, digits, '_', '-' and '.' make one.",
            )


def _article(noun: str) -> str:
    return f"an {noun}" if noun[0] in "aeiou" else f"a {noun}"
