"""The kernel that an owner has left for a notebook: found in the daemon's records, also those of before the machine's last start."""

from __future__ import annotations

import os
from collections.abc import Container
from pathlib import Path
from typing import Any

import msgspec

from ..wire import decoding
from ..wire.place import start_time
from ..wire.protocol import Owner, OwnerKind


class _Spec(msgspec.Struct):
    """The part of a kernel's launch spec that is needed here."""

    kernel_id: str


class _Record(msgspec.Struct):
    """The part of a kernel's record (`daemon/kernels/kernel_records.py`) that is needed here."""

    spec: _Spec
    owner: Owner
    jupyter: dict[str, Any] = {}


def left_kernel(
    state_dir: Path, path: str, *, root: str, owner_id: str, known: Container[str] = ()
) -> str:
    """Return the id of a notebook's kernel that `owner_id`, or an owner that has ended or offers it, left; empty if there is none.

    `path`: relative to `root`. `known`: ids of kernels that do not count.
    """
    for file in sorted((state_dir / "kernels").glob("*/record.json")):
        try:
            record = decoding.from_json(file.read_bytes(), _Record)
        except (OSError, msgspec.DecodeError):  # it has just ended, or the daemon reports it
            continue
        owner = record.owner
        if owner.kind is not OwnerKind.SERVER or record.spec.kernel_id in known:
            continue
        runs = bool(owner.pid) and start_time(owner.pid) == owner.start_time
        if runs and owner.owner_id != owner_id:
            continue
        if path in _paths(record.jupyter, root):
            return record.spec.kernel_id
    return ""


def _paths(jupyter: dict[str, Any], root: str) -> set[str]:
    """Return the paths of a kernel's sessions, relative to `root`."""
    rows, saved_root = jupyter.get("sessions"), str(jupyter.get("root", ""))
    return {
        path_below(str(row.get("path", "")), saved_root=saved_root, root=root)
        for row in (rows if isinstance(rows, list) else ())
        if isinstance(row, dict)
    }


def path_below(path: str, *, saved_root: str, root: str) -> str:
    """Return a session's path relative to `root` instead of `saved_root`; unchanged if it does not lie below `root`."""
    if not saved_root or saved_root == root:
        return path
    absolute = Path(os.path.normpath(Path(saved_root, path)))
    if not absolute.is_relative_to(root):
        return path
    return absolute.relative_to(root).as_posix()
