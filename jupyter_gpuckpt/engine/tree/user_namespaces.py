"""Kernels in a user namespace of their own: what an ordinary user needs no right for.

The namespace maps one user and one group: inside those that the kernel was started with, outside the daemon's. A kernel that is
launched has the same on both sides; one that another user saved keeps its own, and is ours outside. Without a namespace of its own a
kernel shares ours, which takes rights (`host.privileges`). See man user_namespaces.

Covers: who needs one, which ids a tree has in it. Does not cover: how it is made (namespaces.c), the owners and credentials in
images (`criu/owners.py`).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from ...host import processes
from ...model import Manifest
from ..settings import EngineSettings


class Ids(NamedTuple):
    """The ids of a kernel's user and group, as it sees them."""

    uid: int
    gid: int


def for_launch(settings: EngineSettings) -> Ids | None:
    """Return the ids of a kernel that is launched in a user namespace of its own; None if it shares ours."""
    return Ids(os.geteuid(), os.getegid()) if settings.user_namespace else None


def for_resume(settings: EngineSettings, manifest: Manifest) -> Ids | None:
    """Return the ids of a kernel that comes back in one: where rights are missing, or another user saved it."""
    if settings.user_namespace or manifest.uid != os.geteuid():
        return Ids(manifest.uid, manifest.gid)
    return None


def has_own(pid: int) -> bool:
    """Return whether a process is in another user namespace than we are."""
    return processes.namespace(pid, "user") != processes.namespace(os.getpid(), "user")


def ids_of(init_pid: int) -> Ids:
    """Return the ids with which a tree's kernel was started, as the kernel sees them."""
    if not has_own(init_pid):
        return Ids(os.geteuid(), os.getegid())
    return Ids(*(_first(Path(f"/proc/{init_pid}/{name}")) for name in ("uid_map", "gid_map")))


def _first(mapping: Path) -> int:
    """Return the first id of a mapping, as it is inside."""
    return int(mapping.read_text().split()[0])
