"""Resume: from a snapshot in the store to a running process tree.

A failed resume leaves the snapshot untouched and no process or file behind.
"""

from __future__ import annotations

import logging
import stat
from collections.abc import Callable, Collection, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from ..engine import kept_file_copies as copies
from ..engine import thaw
from ..engine.gpu import restore as gpu_restore
from ..engine.gpu.placement import Placement, visible
from ..engine.settings import EngineSettings
from ..engine.tree.tree import Tree
from ..errors import FilesChanged, HostIncompatible, ThawDisturbed
from ..host import gpu, machine_profile
from ..host.file_digests import FileDigests
from ..store.read_only import ReadableStore
from ..wire.file_records import MappedFile
from ..wire.manifest_records import Gpu, Host, LaunchSpec, Manifest
from ..wire.progress import Progress, Stage
from ..wire.protocol import ResumeRequest
from . import kept_files, open_files, room
from .stored_content import StoredContent
from .unpacked_snapshots import UnpackedSnapshots
from .working_folder.folder_copies import FolderCopy

_log = logging.getLogger(__name__)

#: The number of a digest's digits that are shown, and the most files that a message names.
_SHOWN_DIGEST, _SHOWN = 12, 5


class Resumed(NamedTuple):
    """The result of a resume. `warnings`: for the user; `moved_ports`: of listeners whose ports were taken, old to new."""

    tree: Tree
    warnings: list[str]
    moved_ports: dict[int, int]


def resume(  # noqa: PLR0913 - all but the first three by name
    manifest: Manifest,
    store: ReadableStore,
    settings: EngineSettings,
    *,
    exit_path: Path,
    jupyter_runtime_dir: str = "",
    own_ports: Sequence[int] | None = None,
    request: ResumeRequest | None = None,
    digests: FileDigests | None = None,
    is_copy: bool = False,
    new: LaunchSpec | None = None,
    unpacked: UnpackedSnapshots | None = None,
    folder: FolderCopy | None = None,
    progress: Progress,
) -> Resumed:
    """Resume the kernel of `manifest`, or start a second one from it; on return it runs.

    `own_ports`: its new ports, in the order of its launch's own ports; None: the same as before. `request`: the client's, for its GPUs
    and whether it is forced. `digests`: a cache of the digests of files. `is_copy`: as in `fresh_randomness.renew`. `new`: as in `thaw`.
    `unpacked`: what resumes of the same snapshot share. `folder`: the working folder that a branch has for itself.
    Raises HostIncompatible when this machine cannot hold it, FilesChanged for files with which it would end or do harm (nothing was tried
    then), ThawFailed when CRIU or the GPU driver failed, ObjectCorrupt when the store is damaged.
    """
    request, digests = request or ResumeRequest(), digests or FileDigests()
    unpacked = unpacked or UnpackedSnapshots()
    with (
        copies.in_use(settings.kept_dir, manifest.kept),
        unpacked.used(manifest, store, settings) as shared,
    ):
        with progress.stage(Stage.PREFLIGHT):
            here = machine_profile.host()
            allowed = _allowed_gpus(manifest, request.visible_gpus, here.gpus)
            check(manifest, here, allowed, digests, store=store, spill_dir=settings.spill_dir)
            if folder is not None:
                folder.make(progress)
            inside = folder.inside if folder is not None else Path
            made_anew = manifest.launch.cwd if folder is not None or request.files else ""
            changed = _changes_of_files(
                manifest, here, digests, inside, made_anew, force=request.force
            )
            kept = kept_files.lacking(manifest, settings.kept_dir, digests)
        attempt = partial(
            thaw.thaw,
            manifest,
            StoredContent(manifest, store, settings, progress, shared),
            settings,
            exit_path=exit_path,
            jupyter_runtime_dir=jupyter_runtime_dir,
            own_ports=own_ports,
            allowed_gpus=allowed,
            kept=kept,
            force=request.force,
            is_copy=is_copy,
            in_namespaces=folder.mount if folder is not None else lambda init_pid: None,
            new=new,
            progress=progress,
        )
        try:
            thawed = attempt()
        except ThawDisturbed as error:
            _log.warning("a restore is attempted again: %s %s", error.message, error.details)
            thawed = attempt()
    # Users know nothing of the kernel's own log and IPython's history, which each machine has for itself.
    gone = [
        f"The file {path} was gone; an empty one is in its place."
        for path in thawed.made
        if path != manifest.launch.log_path and not open_files.is_history(path)
    ]
    lost = [*manifest.lost_connections, *thawed.lost_connections]
    closed = [f"The network connection {name} was closed." for name in lost]
    moved = [
        f"This machine does not have the address {old}. The kernel's servers on it are reached at {new} now."
        for old, new in thawed.moved_addresses.items()
    ]
    return Resumed(
        thawed.tree, changed + gone + moved + closed + thawed.changed, thawed.moved_ports
    )


def _changes_of_files(
    manifest: Manifest,
    this_host: Host,
    digests: FileDigests,
    inside: Callable[[str], Path],
    made_anew: str,
    *,
    force: bool,
) -> list[str]:
    """Return warnings of the open files that changed. Raises FilesChanged, unless `force`, for changes that end it or do harm.

    `inside`: as in `missing_files.missing`. `made_anew`: a folder that was put back as it was, so that other folders in it are no changes.
    """
    found = [
        one
        for one in open_files.differences(manifest, this_host, digests.outlines, inside)
        if one.difference is not open_files.Difference.REPLACED
        or not f"{one.file.path}/".startswith(f"{made_anew or None}/")
    ]
    refused = open_files.refusals(found)
    if refused and not force:
        names = open_files.former_names(found, manifest, this_host)
        told = [*refused[:_SHOWN], *names[:_SHOWN]]
        raise FilesChanged(
            f"Files that the kernel uses have changed or are missing. {' '.join(told)}",
            hint="Put them back as they were and resume the kernel again, or resume it all the same. The snapshot is untouched. Files that"
            " `c.GpuCkptProvisioner.keep_files` names travel with snapshots.",
            details="\n".join(refused),
            command="`jupyter gpuckpt resume KERNEL --force` resumes it all the same.",
        )
    warnings = [*refused, *open_files.suspicious(found)]
    for text in warnings:
        _log.warning("kernel %s: %s", manifest.info.kernel_id, text)
    return warnings


def check(
    manifest: Manifest,
    this_host: Host,
    allowed_gpus: Collection[str] | None = None,
    digests: FileDigests | None = None,
    *,
    store: ReadableStore,
    spill_dir: Path,
) -> None:
    """Check whether the kernel can be resumed on this machine with these GPUs (None: all). Raises HostIncompatible with all reasons."""
    problems = obstacles(manifest, this_host, digests)
    of_memory = [
        room.memory_shortage(manifest, store),
        room.reservation_shortage(manifest, store),
        _placement(manifest, allowed_gpus).shortage,
    ]
    of_disk = room.disk_shortage(manifest, store, spill_dir)
    shortages = [text for text in (*of_memory, of_disk) if text]
    if problems or shortages:
        hints = []
        if problems:
            hints.append(
                "Undo these changes (for a package: install the version of the snapshot), or resume where they were not made."
            )
        if any(of_memory):
            hints.append("Suspend or shut down another kernel to free memory, then try again.")
        if of_disk:
            hints.append(f"Free space where {spill_dir} lies, then try again.")
        raise HostIncompatible(
            "The kernel cannot be resumed here as things are. "
            + " ".join([*shortages, *problems[:5]]),
            hint=" ".join([*hints, "The snapshot is untouched."]),
            details="\n".join([*shortages, *problems]),
        )


def gpu_room(manifest: Manifest, visible_gpus: str = "") -> Placement:
    """Return the GPU memory that the kernel needs, and the free memory of the GPUs on which it would be placed."""
    return _placement(manifest, _allowed_gpus(manifest, visible_gpus, gpu.gpus()))


def obstacles(manifest: Manifest, this_host: Host, digests: FileDigests | None = None) -> list[str]:
    """Return the differences from the machine of the snapshot, a sentence each. Free memory is not considered.

    Nor are open files: the images list them (`engine.criu.missing_files`).
    """
    found = machine_profile.differences(manifest.host, this_host, with_gpu=bool(manifest.gpu))
    changed = changed_files(manifest, digests)
    return [*found, *changed, *home_elsewhere(manifest, this_host)] if changed else found


def home_elsewhere(manifest: Manifest, this_host: Host) -> list[str]:
    """Return a sentence if the kernel used files below a home directory that has another path here; else none."""
    home = manifest.host.home
    paths = (manifest.launch.cwd, *(file.path for file in manifest.mapped))
    if (
        not home
        or home == this_host.home
        or not any(Path(path).is_relative_to(home) for path in paths)
    ):
        return []
    return [
        f"The kernel has files in the home directory of its machine, {home}; here it is {this_host.home}."
    ]


def changed_files(manifest: Manifest, digests: FileDigests | None = None) -> list[str]:
    """Return a sentence for each program or library of the kernel that has changed and is not in the snapshot."""
    known, kept = digests or FileDigests(), {file.path for file in manifest.kept}
    return [
        text
        for file in manifest.mapped
        if file.path not in kept and (text := _changed(file, known))
    ]


def _placement(manifest: Manifest, allowed_gpus: Collection[str] | None) -> Placement:
    return gpu_restore.placement_of(manifest.gpu, manifest.host.gpus, allowed_gpus)


def _allowed_gpus(
    manifest: Manifest, visible_gpus: str, local_gpus: Sequence[Gpu]
) -> set[str] | None:
    """Return the UUIDs of the GPUs that both the kernel's launch and the client may use, else all of the client's; None: all GPUs."""
    asked = visible(visible_gpus, local_gpus)
    launched = visible(manifest.launch.env.get("CUDA_VISIBLE_DEVICES"), local_gpus)
    if asked is None or launched is None:
        return launched if asked is None else asked
    return asked & launched or asked


def _changed(file: MappedFile, digests: FileDigests) -> str:
    """Return a sentence about how a program or library has changed; empty if it has not."""
    try:
        found = Path(file.path).stat()
        length = found.st_size
        if not stat.S_ISREG(found.st_mode):  # reading it might never end
            was, now = "a file", "something else"
        elif file.length and length != file.length:
            was, now = f"{file.length} bytes", f"{length} bytes"
        elif file.digest and (digest := digests.of(file.path)) != file.digest:
            was, now = f"digest {file.digest[:_SHOWN_DIGEST]}", f"digest {digest[:_SHOWN_DIGEST]}"
        else:
            return ""
    except FileNotFoundError:
        return f"The file {file.path}, which the kernel uses, is gone."
    except OSError as error:
        return f"The file {file.path}, which the kernel uses, cannot be read: {error.strerror}."
    return f"The file {file.path}, which the kernel uses, was replaced ({was} then, {now} now)."
