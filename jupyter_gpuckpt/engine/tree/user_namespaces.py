"""Kernels in a user namespace of their own, for which an ordinary user needs no rights.

The namespace maps one user and one group: inside they have the ids with which the kernel was started, outside the daemon's ids. These
are equal for a kernel that was launched here; a kernel that another user saved keeps its ids inside, unless it becomes a new kernel. A
kernel that shares the daemon's user namespace needs rights (`host.privileges`). See man user_namespaces.

Covers: the kernels that need one, the ids that a tree has in it. Does not cover: how it is made (namespaces.c), the owners and
credentials in images (`engine/criu/owner_images.py`).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from ...host import processes
from ...wire.manifest_records import Manifest
from ..settings import EngineSettings


class Ids(NamedTuple):
    """The ids of a kernel's user and group, as it sees them."""

    uid: int
    gid: int


def for_launch(settings: EngineSettings) -> Ids | None:
    """Return the ids of a kernel that is launched in a user namespace of its own; None if it shares ours."""
    return Ids(os.geteuid(), os.getegid()) if settings.user_namespace else None


def for_resume(settings: EngineSettings, manifest: Manifest, *, is_new: bool) -> Ids | None:
    """Return the ids of a kernel that is resumed in a user namespace: if rights are missing, or if another user saved it.

    `is_new`: it becomes a kernel of this user, which never had other ids.
    """
    if settings.user_namespace or manifest.uid != os.geteuid():
        return Ids(os.geteuid(), os.getegid()) if is_new else Ids(manifest.uid, manifest.gid)
    return None


def has_own(pid: int) -> bool:
    """Return whether a process is in another user namespace than this one."""
    return processes.namespace(pid, "user") != processes.namespace(os.getpid(), "user")


def ids_of(init_pid: int) -> Ids:
    """Return the ids with which a tree's kernel was started, as the kernel sees them."""
    if not has_own(init_pid):
        return Ids(os.geteuid(), os.getegid())
    return Ids(*(_first(Path(f"/proc/{init_pid}/{name}")) for name in ("uid_map", "gid_map")))


def _first(mapping: Path) -> int:
    """Return the first id of a mapping, as seen inside the namespace."""
    return int(mapping.read_text().split()[0])
