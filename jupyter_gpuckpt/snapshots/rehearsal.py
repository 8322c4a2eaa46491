"""The rehearsal of a resume: the last step of a suspend before anything is killed.

Covers: everything that a resume on this machine would refuse a second later, and all private files that it needs. The manifest
and the images are those that were read back from the store. Does not cover: memory in the store (save.py), free memory and
GPU memory, which the kernel still occupies, and ports, which the daemon holds.
"""

from __future__ import annotations

import resource
import struct
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from ..engine.criu import images as criu_images
from ..engine.criu import missing_files
from ..engine.placing import problem_of_images
from ..engine.tcp import record as tcp_record
from ..engine.tree.tree import Tree
from ..errors import StoreError
from ..host.file_digests import FileDigests
from ..store import manifest_checks
from ..store.local import LocalStore
from ..wire.manifest_records import Host, Manifest
from . import open_files
from .resume import obstacles
from .room import disk_shortage, reservation_shortage
from .stored_images import FILES, MEMORY, PROCESSES, write_images

#: The exceptions of reading a damaged image or manifest.
_UNREADABLE = (ValueError, IndexError, KeyError, StopIteration, OSError, struct.error, StoreError)


def rehearse(
    manifest: Manifest,
    store: LocalStore,
    tree: Tree,
    this_host: Host,
    digests: FileDigests,
    spill_dir: Path,
) -> list[str]:
    """Return the obstacles to resuming the snapshot on this machine, a sentence each; empty if there are none.

    `manifest`: as read back from the disk; `tree`: its mount namespace still exists.
    """
    found = obstacles(manifest, this_host, digests)
    changed = open_files.differences(manifest, this_host, digests.outlines, tree.inside)
    # The databases of a running kernel change all the time, and a stopped one holds its locks still.
    found += [one.text for one in changed if one.difference is open_files.Difference.TOO_SHORT]
    if problem := manifest_checks.problem_of(manifest):
        found.append(f"A resume would refuse it: {problem}.")
    try:
        with TemporaryDirectory() as directory:
            images = Path(directory)
            write_images(manifest, store, images, [*FILES, *MEMORY, *PROCESSES])
            if problem := problem_of_images(manifest, images):
                found.append(f"A resume would refuse it: {problem}.")
            missing = missing_files.missing(
                images,
                tree.inside,
                manifest.traveling,
                is_reached=partial(missing_files.is_reached, tree),
            )
            found += [*missing.lost, *missing.needed.values()]
            found += _incomplete(manifest, images)
            found += _limits(images)
        shortages = [reservation_shortage(manifest, store, running=True)]
        # The images of a plain dump are still on disk; removing them frees the space for a resume.
        if manifest.method == "skeleton":
            shortages.append(disk_shortage(manifest, store, spill_dir))
        found += filter(None, shortages)
    except _UNREADABLE as error:
        found.append(f"The images cannot be read back: {type(error).__name__}: {error}.")
    return found


def _incomplete(manifest: Manifest, images: Path) -> Iterator[str]:
    """Yield a sentence for each thing that the images refer to and that the snapshot lacks."""
    names = {image.name for image in manifest.images}
    lengths = {stream.name: stream.length for stream in manifest.streams}
    captured = {record.path for record in manifest.captured}
    if {process.pid for process in criu_images.processes(images)} != {
        process.pid for process in manifest.processes
    }:
        yield "The list of processes differs from the one in the images."
    for process in manifest.processes:
        if process.pages:
            extents = criu_images.pagemap(images, process.pid)
            # A plain dump marks the same pages as lazy, but has them in its own file.
            ours = sum(e.length for e in extents if e.lazy and manifest.method == "skeleton")
            file = f"pages-{criu_images.pages_id(images, process.pid)}.img"
            if file not in names or lengths.get(process.pages, 0) != ours:
                yield f"Memory of process {process.pid} ({process.name}) is missing."
    for image in criu_images.ghost_images(images):
        if image not in names:
            yield f"A deleted file that the kernel uses is missing (image {image})."
    for link, original in criu_images.link_remaps(images):
        if link not in captured:
            yield f"The file {original}, which was replaced while the kernel used it, is missing."
    needed = [record.stream for record in manifest.captured if record.stream]
    needed += [f"gpu{path}" for process in manifest.gpu for path in process.staging]
    yield from (f"The content of {name} is missing." for name in needed if name not in lengths)
    unread = sum(end.unread for kept in manifest.connections for end in kept.ends)
    if lengths.get(tcp_record.STREAM, 0) != unread:
        yield "The undelivered bytes of the kernel's own connections are missing."


def _limits(images: Path) -> Iterator[str]:
    """Yield a sentence for each limit of this machine that the tree exceeds."""
    criu_images.highest_pid(images)  # a resume computes it, so it must not raise
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    highest = criu_images.highest_descriptor(images)
    if hard != resource.RLIM_INFINITY and highest >= hard:
        yield (
            f"A process of the kernel has descriptor {highest} open; the limit here is {hard}"
            " (`ulimit -Hn`)."
        )
