"""Save and suspend: from a running process tree to a snapshot in the store.

A snapshot exists completely or not at all, and a failed save leaves the kernel running as before. Killing is the last act.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

from ..engine.audit import records as audit_records
from ..engine.criu import images as criu_images
from ..engine.freeze import Frozen, frozen
from ..engine.preflight import plan
from ..engine.settings import EngineSettings
from ..engine.tcp import record as tcp_record
from ..engine.tcp.remake import RemadeConnections
from ..engine.tree import user_namespaces
from ..engine.tree.launch import kill, pids
from ..engine.tree.losses import telling_a_loss
from ..engine.tree.tree import Tree
from ..errors import GpuCkptError, KernelNotCheckpointable, StoreError
from ..host import connections, fingerprint, gpu, processes
from ..host.file_digests import FileDigests
from ..images.composing import Predecessor
from ..images.pack import BytesSource, FileSource, Packed, Source, pack
from ..manifest_records import (
    SHOWN_VARIABLES,
    ImageFile,
    KeptFile,
    LaunchSpec,
    Manifest,
    MappedFile,
    SaveOptions,
    Sizes,
    SnapshotInfo,
)
from ..progress import Progress, Stage
from ..store.local import LocalStore
from . import kept_files, notebooks
from .gpu_packing import GpuPacking
from .gpu_tables import EarlierGpuMemory
from .rehearsal import rehearse
from .stored_images import IMAGES_STREAM

logger = logging.getLogger(__name__)

#: Images up to this size are put together into one stream; larger ones (shared memory, plain dumps) are their own.
_SMALL_BYTES = 1 << 20
#: The most names of one kind that a message lists.
_SHOWN = 3
#: The most bytes of programs and libraries that are hashed while the kernel waits; the others are hashed in the background.
_HASHED_BYTES = 64 << 20


class Saved(NamedTuple):
    """The result of a save or suspend."""

    manifest: Manifest
    warnings: list[str]


def save(
    tree: Tree,
    spec: LaunchSpec,
    store: LocalStore,
    settings: EngineSettings,
    options: SaveOptions,
    *,
    progress: Progress,
    digests: FileDigests | None = None,
) -> Saved:
    """Take a snapshot of `tree`; with `options.stop` the tree is gone on return.

    Raises FreezeFailed, StoreFull, OperationCancelled ...; the kernel then runs on as before. Raises an error after a complete
    snapshot only if GPU memory cannot be moved back; its hint names the snapshot. Raises KernelNotCheckpointable, with the
    reasons, for an idle kernel (`options.cause`) with network connections to others, and for a suspend whose rehearsal of the
    resume found obstacles. Raises KernelLost if the kernel ended meanwhile. `digests`: a cache of the digests of programs and libraries.
    """
    began, stop, variables = time.time(), options.stop, options.variables
    digests = digests or FileDigests()
    with telling_a_loss(tree, "saved"), progress.stage(Stage.PREFLIGHT):
        warnings = (
            _outer_connections(tree, spec, cut=not options.cause.spares_connections) if stop else []
        )
        gpu_bytes = sum(gpu.memory_of(pids(tree)).values())
        chosen = plan(tree, settings, private_shm=spec.private_shm, stop=stop, gpu_bytes=gpu_bytes)
        host = fingerprint.host()
        ids = user_namespaces.ids_of(tree.init_pid)
        # This may take time, so it comes before the freeze.
        predecessor, earlier_gpu = _predecessor(store, spec.kernel_id)
        notebook, not_stored = notebooks.read(spec.jupyter)
        warnings += not_stored
    complete: list[SnapshotInfo] = []
    with (
        _naming_complete(complete),
        telling_a_loss(tree, "saved"),
        GpuPacking(
            store, settings, alone=stop, predecessor=predecessor, earlier=earlier_gpu
        ) as gpu_packing,
        frozen(
            tree,
            chosen,
            settings,
            options,
            gpu_files_taken=gpu_packing.begin,
            earlier_gpu=earlier_gpu,
            store_window=partial(gpu_packing.store_window, progress),
            progress=progress,
        ) as state,
    ):
        images, sources = _images(state)
        sources += state.memory
        sources += [FileSource(stream, path) for stream, path in state.captured_files.items()]
        sources += _queues(state)
        sources += _facts(state)
        kept, kept_sources = kept_files.chosen(tree, state, spec, digests)
        sources += kept_sources
        if notebook is not None:
            sources += notebook.sources
        if stop:
            warnings += _lost_connections(state, spec, cut=not options.cause.spares_connections)
        highest = criu_images.highest_pid(state.images)
        mapped, replaced = _programs(tree, state, digests, kept)
        warnings += replaced
        total = state.gpu_bytes + sum(source.length for source in sources)
        with progress.stage(Stage.STORE, total):
            packed = _stored(state, sources, gpu_packing, store, settings, predecessor, progress)
        state.release_memory()
        kept, changed = kept_files.unchanged(kept, state, tree, digests)
        warnings += changed
        state.prove_still()
        needed = store.needed(packed.streams)
        sizes = _sizes(packed, needed.stored_bytes, state)
        manifest = Manifest(
            info=_info(state, sizes, spec, options, began=began, host_name=host.name),
            launch=spec.written_down(),
            host=host,
            method=chosen.method,
            keeper_pid=tree.keeper_nspid,
            kernel_pid=tree.kernel_nspid,
            highest_pid=highest,
            processes=state.processes,
            images=images,
            streams=packed.streams,
            captured=state.captured,
            kept=kept,
            gpu=state.gpu,
            mapped=mapped,
            connections=state.connections,
            uid=ids.uid,
            gid=ids.gid,
            lost_connections=_unkept(state, spec),
            seconds_by_stage=dict(progress.seconds_by_stage),
            variables=variables,
            notebook_modified=notebook.modified if notebook is not None else 0.0,
        )
        with store.staged(manifest, needed) as staged:
            with progress.stage(Stage.REHEARSAL):
                problems = rehearse(staged.manifest, store, tree, host, digests, settings.spill_dir)
                warnings += _rehearsal_warnings(problems, stop=stop)
            progress.point_of_no_return()
            with progress.stage(Stage.COMMIT):
                staged.publish()
        complete.append(manifest.info)
        if stop:
            with progress.stage(Stage.STOP):
                kill(tree)
    return Saved(manifest, warnings)


def _stored(
    state: Frozen,
    sources: Sequence[Source],
    gpu_packing: GpuPacking,
    store: LocalStore,
    settings: EngineSettings,
    predecessor: Predecessor | None,
    progress: Progress,
) -> Packed:
    """Store `sources` while GPU memory is copied and stored, then the tables of digests of that memory."""
    storing = partial(
        pack,
        store=store,
        threads=settings.threads,
        progress=progress,
        memory_bytes=gpu_packing.memory_bytes if state.gpu_bytes else settings.memory_bytes,
        predecessor=predecessor,
    )
    others = storing(sources)
    state.finish_gpu()
    packed = gpu_packing.finish(progress)
    tables = gpu_packing.tables(packed)
    return packed.and_also(others).and_also(storing(tables) if tables else Packed.of_nothing())


def _predecessor(store: LocalStore, kernel_id: str) -> tuple[Predecessor | None, EarlierGpuMemory]:
    """Return the newest snapshot of the kernel, so that the new one stores only changes, and its GPU memory.

    Where none can be read everything is stored.
    """
    try:
        newest = next(iter(store.snapshots(kernel_id)), None)
        if newest is not None:
            streams = store.manifest(newest.snapshot_id).streams
            predecessor = Predecessor(streams)
            return predecessor, EarlierGpuMemory(streams, store, predecessor.digests)
    except StoreError as error:
        logger.warning(
            "Changed chunks are stored whole, because the previous snapshot cannot be read: %s",
            error,
        )
    return None, EarlierGpuMemory([], store)


@contextmanager
def _naming_complete(complete: list[SnapshotInfo]) -> Iterator[None]:
    """Add the complete snapshot to the hint of a later error, so that it is not taken for lost."""
    try:
        yield
    except GpuCkptError as error:
        for info in complete:
            error.hint = f"{error.hint} The snapshot {info.snapshot_id} is complete.".lstrip()
        raise


def _outer_connections(tree: Tree, spec: LaunchSpec, *, cut: bool) -> list[str]:
    """Return warnings of the connections with other processes that a suspend cuts; a save cuts none."""
    own = set(spec.own_ports)
    outer = connections.survey(pids(tree)).outer
    return _cut(
        [str(end) for end in outer if not own & {end.row.local.port, end.row.remote.port}], cut=cut
    )


def _lost_connections(state: Frozen, spec: LaunchSpec, *, cut: bool) -> list[str]:
    """Return warnings of the connections within the tree that a resume of this snapshot will not restore."""
    lost = _unkept(state, spec)
    queues = memoryview(state.connections_queues)
    with RemadeConnections(
        state.connections, lambda at, length: bytes(queues[at : at + length]), rehearsal=True
    ) as made:
        lost += made.lost
    return _cut(lost, cut=cut)


def _unkept(state: Frozen, spec: LaunchSpec) -> list[str]:
    """Return the names of inner connections that the snapshot lacks, except those on the kernel's own ports, whose peers reconnect."""
    own = set(spec.own_ports)
    return [lost.text for lost in state.connections_lost if not own & set(lost.ports)]


def _cut(found: Sequence[str], *, cut: bool) -> list[str]:
    if not found:
        return []
    shown = _some(found)
    if not cut:
        raise KernelNotCheckpointable(
            f"The kernel has network connections that a suspend would cut: {shown}.",
            hint="Suspend it yourself if these connections can be made again, or close them.",
        )
    return [f"Network connections were cut: {shown}."]


def _queues(state: Frozen) -> list[Source]:
    if not state.connections_queues:
        return []
    return [BytesSource(tcp_record.STREAM, state.connections_queues)]


def _facts(state: Frozen) -> list[Source]:
    data = state.facts.encoded()
    return [BytesSource(audit_records.STREAM, data)] if data else []


def _images(state: Frozen) -> tuple[list[ImageFile], list[Source]]:
    listed, small, sources = [], bytearray(), list[Source]()
    for path in sorted(state.images.glob("*.img")):
        length = path.stat().st_size
        if length > _SMALL_BYTES:
            listed.append(ImageFile(path.name, length, stream=f"image/{path.name}"))
            sources.append(FileSource(f"image/{path.name}", path))
        else:
            listed.append(ImageFile(path.name, length, offset=len(small)))
            small += path.read_bytes()
    return listed, [BytesSource(IMAGES_STREAM, bytes(small)), *sources]


def _programs(
    tree: Tree, state: Frozen, digests: FileDigests, kept: Sequence[KeptFile]
) -> tuple[list[MappedFile], list[str]]:
    """Return the programs and libraries that must be the same at a resume, and warnings of those that were replaced since.

    CRIU compares those that have a build id. Files that were replaced or deleted while the kernel used them are in the images.
    """
    executable = set().union(*(processes.programs(pid) for pid in pids(tree)))
    executable |= {path for path, copy in state.copies.items() if str(copy) in executable}
    known = {file.path: file.digest for file in kept}
    in_images = criu_images.remapped(state.images)
    traveling = {record.path for record in state.captured}
    files: dict[str, criu_images.RegularFile] = {}
    replaced = set()
    for file in criu_images.regular_files(state.images):
        path = "/" + file.path.lstrip("/")
        if path in traveling or not (file.build_id or path in executable):
            continue
        if file.file_id in in_images:
            replaced.add(state.gone.get(path, path))
        elif file.length:
            files[path] = file
    digests.learn(files.keys() - known.keys(), max_bytes=_HASHED_BYTES)
    mapped = [
        MappedFile(
            path,
            files[path].length or 0,
            files[path].build_id,
            known.get(path) or digests.known(path),
        )
        for path in sorted(files)
    ]
    if not replaced:
        return mapped, []
    return mapped, [
        "These programs or libraries were replaced or removed after the kernel had loaded them: "
        f"{_some(sorted(replaced))}. The kernel and its snapshot keep the versions that it loaded."
    ]


def _rehearsal_warnings(problems: Sequence[str], *, stop: bool) -> list[str]:
    """Raise KernelNotCheckpointable for a suspend whose rehearsal found problems; return the warning of a save."""
    if not problems:
        return []
    if stop:
        raise KernelNotCheckpointable(
            f"The kernel was not suspended, because it could not be resumed: {' '.join(problems[:_SHOWN])}",
            hint="The kernel runs on. Fix the named problems, then try again.",
            details="\n".join(problems),
        )
    return [f"At present this snapshot cannot be resumed here: {' '.join(problems[:_SHOWN])}"]


def _some(names: Sequence[object]) -> str:
    """Join the first names with commas."""
    shown = ", ".join(str(name) for name in names[:_SHOWN])
    return f"{shown} and {len(names) - _SHOWN} more" if len(names) > _SHOWN else shown


def _sizes(packed: Packed, stored_bytes: int, state: Frozen) -> Sizes:
    gpu_bytes = sum(process.memory_bytes for process in state.gpu)
    return Sizes(packed.raw_bytes, stored_bytes, packed.new_bytes, gpu_bytes)


def _info(
    state: Frozen,
    sizes: Sizes,
    spec: LaunchSpec,
    options: SaveOptions,
    *,
    began: float,
    host_name: str,
) -> SnapshotInfo:
    return SnapshotInfo(
        snapshot_id=uuid.uuid4().hex,
        kernel_id=spec.kernel_id,
        created=began,
        reason="suspend" if options.stop else "save",
        name=options.name,
        sizes=sizes,
        frozen_seconds=state.frozen_seconds,
        seconds=time.time() - began,
        host_name=host_name,
        cause=options.cause,
        pinned=options.pinned,
        title=options.title,
        variables=options.variables.listed[:SHOWN_VARIABLES] if options.variables else [],
        cell=options.cell,
        in_cell=options.in_cell,
    )
