"""The check for whether a kernel that was saved elsewhere could be resumed here. It needs only the manifest, before a fetch."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from ..host import machine_profile, processes
from ..host.file_digests import FileDigests
from ..wire.manifest_records import Host, Manifest
from . import open_files, resume, room

_VERSION = re.compile(r"(\d+)\.(\d+)")


class Arrival(NamedTuple):
    """The result of the check: obstacles to a resume here and warnings, a sentence each. `hint`: a remedy."""

    obstacles: list[str]
    warnings: list[str]
    hint: str


def check(manifest: Manifest, digests: FileDigests | None = None) -> Arrival:
    """Check whether `manifest` could be resumed on this machine, as far as that is known without the snapshot's images."""
    this_host = machine_profile.host()
    changed, found = (
        [],
        machine_profile.differences(manifest.host, this_host, with_gpu=bool(manifest.gpu)),
    )
    hints = ["Fetch it on a machine like the one of the snapshot."] if found else []
    if files := resume.changed_files(manifest, digests):
        changed += files
        hints.append(
            "Install the programs and libraries of the snapshot, at the same paths and in the same versions; an image of that machine's"
            " container has both."
        )
    if _is_gone(manifest.launch.cwd):
        changed.append(
            f"There is no folder {manifest.launch.cwd}, in which the kernel was started."
        )
        hints.append("Make that folder, with the files that the kernel needs.")
    differing = open_files.differences(manifest, this_host, (digests or FileDigests()).outlines)
    others = (one for one in differing if one.file.path != manifest.launch.cwd)
    if missing := open_files.missing_folders(others):
        changed += missing
        hints.append("Copy these folders to the same paths.")
    if refused := open_files.refusals(differing):
        changed += refused
        hints.append(
            "Copy the files that it has there to the same paths, or fetch and resume it all the same."
        )
    if changed and (elsewhere := resume.home_elsewhere(manifest, this_host)):
        changed += elsewhere
        hints.append("Or fetch it where the home directory has the same path.")
    warnings = [*_warnings(manifest, this_host), *open_files.suspicious(differing)]
    return Arrival([*found, *changed], warnings, " ".join(hints))


def _warnings(manifest: Manifest, this_host: Host) -> list[str]:
    found = []
    then, now = map(_version, (manifest.host.kernel_release, this_host.kernel_release))
    if now < then:
        found.append(
            f"The snapshot was taken under Linux {manifest.host.kernel_release}; this machine's is older"
            f" ({this_host.kernel_release})."
        )
    needed, free = room.max_memory_bytes(manifest), processes.mem_available()
    if needed > free:
        found.append(
            f"Up to {needed >> 20} MB of memory are needed for a resume, {free >> 20} MB are free."
        )
    shortage = resume.gpu_room(manifest).shortage if manifest.gpu and this_host.gpus else ""
    return [*found, shortage] if shortage else found


def _is_gone(folder: str) -> bool:
    """Return whether there is no such folder; False for one that is hidden from this process."""
    try:
        return not Path(folder).is_dir()
    except PermissionError:
        return False


def _version(release: str) -> tuple[int, ...]:
    match = _VERSION.match(release)
    return (int(match[1]), int(match[2])) if match else ()
