"""Validation of ids of kernels, snapshots, operations and owners, which become parts of file paths and URLs."""

from __future__ import annotations

import re

from ..errors import (
    ConfigurationError,
    GpuCkptError,
    KernelNotFound,
    OperationNotFound,
    RemoteNotFound,
    SnapshotNotFound,
)

_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")

#: The error for an invalid id, by the name of the route's part.
_ERRORS: dict[str, type[GpuCkptError]] = {
    "kernel_id": KernelNotFound,
    "snapshot_id": SnapshotNotFound,
    "operation_id": OperationNotFound,
    "owner_id": ConfigurationError,
    "remote": RemoteNotFound,
}


def is_id(text: str) -> bool:
    """Return whether a text is a valid id."""
    return bool(_ID.fullmatch(text))


def require(given: dict[str, str]) -> None:
    """Raise KernelNotFound or a similar error for an invalid id in `given`, which has ids by the name of the route's part."""
    for name, text in given.items():
        if not is_id(text):
            raise _ERRORS.get(name, ConfigurationError)(
                f"{text[:200]!r} is not the id of {_article(name.removesuffix('_id'))}.",
                hint="At most 128 letters, digits, '_', '-' and '.' make one.",
            )


def _article(noun: str) -> str:
    return f"an {noun}" if noun[0] in "aeiou" else f"a {noun}"
