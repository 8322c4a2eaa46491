"""Save and suspend: from a running process tree to a snapshot in the store.

A snapshot exists completely or not at all, and a failed save leaves the kernel running as before. Killing is the last act.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

import msgspec

from ..engine.audit import fact_records as audit_records
from ..engine.criu import images as criu_images
from ..engine.freeze import Frozen, frozen
from ..engine.memory.tracked_kernels import TrackedKernel
from ..engine.preflight import Plan, plan
from ..engine.settings import EngineSettings
from ..engine.tcp import record as tcp_record
from ..engine.tcp import unaccepted
from ..engine.tcp.remake import RemadeConnections
from ..engine.tree import user_namespaces
from ..engine.tree.launch import alive, kill, pids, wait_until
from ..engine.tree.tree import Tree
from ..errors import (
    GpuCkptError,
    KernelLost,
    KernelNotCheckpointable,
    OperationCancelled,
    StoreError,
)
from ..host import connections, gpu, machine_profile, processes
from ..host.file_digests import FileDigests
from ..images.composing import Predecessor
from ..images.pack import BytesSource, FileSource, Packed, Source, pack
from ..images.worker_threads import share_out
from ..store.local import LocalStore
from ..store.pack_identity import Trust
from ..store.pack_reading import read_pack
from ..wire.file_records import KeptFile, MappedFile
from ..wire.folder_records import SavedFolder
from ..wire.manifest_records import (
    SHOWN_VARIABLES,
    CapturedFile,
    Cause,
    ImageFile,
    LaunchSpec,
    Manifest,
    SaveOptions,
    Sizes,
    SnapshotInfo,
)
from ..wire.plurals import some
from ..wire.progress import Progress, Stage
from ..wire.snapshot_order import Making, next_number
from . import kept_files, notebooks, open_files, unwritten_memory
from .gpu_packing import GpuPacking
from .gpu_tables import EarlierGpuMemory
from .rehearsal import rehearse
from .stored_images import IMAGES_STREAM
from .working_folder.folder_saves import FolderSave, earlier_folder

logger = logging.getLogger(__name__)

#: Images up to this size are put together into one stream; larger ones (shared memory, plain dumps) are their own.
_SMALL_BYTES = 1 << 20
#: The most problems that a message lists.
_SHOWN = 3
#: The most bytes of programs and libraries that are hashed while the kernel waits; the others are hashed in the background.
_HASHED_BYTES = 64 << 20
#: The causes of snapshots that may have a deadline: the machine or the server goes, or a restart waits for a while only.
_URGENT = frozenset({Cause.SHUTDOWN, Cause.RECLAIM, Cause.RESTART})
#: How long to wait for the end of processes that are ending: Linux frees some ten GB of memory in a second.
_END_SECONDS = 60.0


class EarlierSnapshots:
    """The snapshots of a kernel in a store. If the list cannot be read it counts as empty: the kernel is saved all the same.

    `parent`: the snapshot from which it was branched, which counts where it has none of its own.
    """

    def __init__(self, store: LocalStore, kernel_id: str, parent: str = "") -> None:
        self._store, self._parent = store, parent
        try:
            #: Newest first, deleted ones included: their numbers are not used again.
            self._listed = store.listed(kernel_id)
        except StoreError as error:
            logger.warning("The earlier snapshots of the kernel cannot be listed: %s", error)
            self._listed = []

    def number_of(self, new: Making) -> int:
        """Return the number of the kernel's next snapshot."""
        return new.number or next_number(new.above, *(one.info.number for one in self._listed))

    def predecessor(self) -> tuple[Predecessor | None, EarlierGpuMemory]:
        """Return the newest snapshot, so that the new one stores only changes, and its GPU memory.

        Where none can be read everything is stored.
        """
        manifest = self._newest(lambda info: True)
        if manifest is None:
            return None, EarlierGpuMemory([], self._store)
        predecessor = Predecessor(manifest.streams, manifest.info.snapshot_id)
        return predecessor, EarlierGpuMemory(manifest.streams, self._store, predecessor.digests)

    def with_files(self) -> Manifest | None:
        """Return the newest snapshot that has the files of the working folder."""
        return self._newest(lambda info: info.has_files)

    def _newest(self, wanted: Callable[[SnapshotInfo], bool]) -> Manifest | None:
        infos = (one.info for one in self._listed if not one.annotations.deleted)
        newest = next((info.snapshot_id for info in infos if wanted(info)), self._parent)
        try:
            if newest:
                return self._store.manifest(newest)
        except StoreError as error:
            logger.warning(
                "Changed chunks are stored whole, because the previous snapshot cannot be read: %s",
                error,
            )
        return None


class Saved(NamedTuple):
    """The result of a save or suspend. `listening`: the ports, besides the kernel's own, on which the tree listened before a suspend."""

    manifest: Manifest
    warnings: list[str]
    listening: list[int]


class _Preparation(NamedTuple):
    """What is known of a save before the freeze. `earlier_gpu`, `predecessor`: see `EarlierSnapshots.predecessor`."""

    plan: Plan
    earlier: EarlierSnapshots
    predecessor: Predecessor | None
    earlier_gpu: EarlierGpuMemory
    notebook: notebooks.Notebook | None
    folder: FolderSave
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
    new: Making | None = None,
    writes: TrackedKernel | None = None,
) -> Saved:
    """Take a snapshot of `tree`; with `options.stop` the tree is gone on return.

    Raises FreezeFailed, StoreFull, OperationCancelled ...; the kernel then runs on as before. Raises an error after a complete
    snapshot only if GPU memory cannot be moved back; its hint names the snapshot. Raises KernelNotCheckpointable, with the
    reasons, for an idle kernel (`options.cause`) with network connections to others, and for a suspend whose rehearsal of the
    resume found obstacles. Raises KernelLost if the kernel ended meanwhile. `digests`: a cache of the digests of programs and libraries.
    `new`: the snapshot's id and what is known of its number (default: nothing). `writes`: the tracking of the kernel's writes.
    """
    began, stop, variables = time.time(), options.stop, options.variables
    begun = time.monotonic()
    digests, new = digests or FileDigests(), new or Making(uuid.uuid4().hex)
    with telling_a_loss(tree, "saved"), progress.stage(Stage.PREFLIGHT):
        prepared = _prepared(tree, spec, store, settings, options, digests, progress)
        host, ids = machine_profile.host(), user_namespaces.ids_of(tree.init_pid)
    warnings, notebook = prepared.warnings, prepared.notebook
    complete: list[SnapshotInfo] = []
    listening = list[int]()
    with (
        _naming_complete(complete),
        telling_a_loss(tree, "saved"),
        prepared.folder.begun(progress, pids(tree)) as folder,
        GpuPacking(
            store,
            settings,
            alone=stop,
            predecessor=prepared.predecessor,
            earlier=prepared.earlier_gpu,
        ) as gpu_packing,
        frozen(
            tree,
            prepared.plan,
            settings,
            options,
            gpu_files_taken=gpu_packing.begin,
            earlier_gpu=prepared.earlier_gpu,
            store_window=partial(gpu_packing.store_window, progress),
            writes=writes,
            at_standstill=lambda: folder.look(pids(tree)),
            progress=progress,
        ) as state,
    ):
        # A suspend has no ghost, and no later save.
        saved_memory = None if stop else unwritten_memory.saved_in(new.snapshot_id, state, writes)
        memory = unwritten_memory.sources(
            state, prepared.predecessor, store, settings.checked_share, writes
        )
        images, sources = _sources(state, memory)
        kept, kept_sources = kept_files.chosen(tree, state, spec, digests)
        sources += kept_sources
        sources += notebook.sources if notebook is not None else []
        if stop:
            listening = _listening(tree, spec)
            warnings += _lost_connections(state, spec, cut=not options.cause.spares_connections)
        highest = criu_images.highest_pid(state.images)
        mapped, replaced = _programs(tree, state, digests, kept)
        warnings += replaced
        total = state.gpu_bytes + sum(source.length for source in sources)
        with progress.stage(Stage.STORE, total):
            packed, files = _stored(
                state, sources, gpu_packing, store, settings, prepared.predecessor, folder, progress
            )
        state.release_memory()
        kept, changed = kept_files.unchanged(kept, state, tree, digests)
        warnings += changed + folder.warnings
        state.prove_still()
        needed = store.needed(packed.streams)
        gpu_bytes = sum(process.memory_bytes for process in state.gpu)
        manifest = Manifest(
            info=SnapshotInfo(
                snapshot_id=new.snapshot_id,
                kernel_id=spec.kernel_id,
                number=prepared.earlier.number_of(new),
                created=began,
                reason="suspend" if stop else "save",
                name=options.name,
                sizes=Sizes(packed.raw_bytes, needed.stored_bytes, packed.new_bytes, gpu_bytes),
                frozen_seconds=state.frozen_seconds,
                seconds=time.monotonic() - begun,
                host_name=host.name,
                cause=options.cause,
                pinned=options.pinned,
                title=options.title,
                variables=variables.listed[:SHOWN_VARIABLES] if variables else [],
                cell=options.cell,
                in_cell=options.in_cell,
                has_files=files is not None,
            ),
            launch=spec.written_down(),
            host=host,
            method=prepared.plan.method,
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
            open_files=open_files.recorded(
                state,
                tree,
                {spec.log_path, *_paths(state.captured), *_paths(kept), *_paths(mapped)},
                digests.outlines,
            ),
            connections=state.tcp.connections,
            uid=ids.uid,
            gid=ids.gid,
            lost_connections=_unkept_connections(state, spec),
            seconds_by_stage=dict(progress.seconds_by_stage),
            variables=variables,
            notebook_modified=notebook.modified if notebook is not None else 0.0,
            folder=files,
        )
        with store.staged(manifest, needed) as staged:
            with progress.stage(Stage.REHEARSAL):
                problems = rehearse(staged.manifest, store, tree, host, digests, settings.spill_dir)
                lost, unread = pack_problems(store, needed.digests, options.cause)
                warnings += unread + _rehearsal_warnings([*lost, *problems], stop=stop)
            progress.point_of_no_return()
            with progress.stage(Stage.COMMIT):
                if not state.tcp.unaccepted:
                    staged.publish()
        if state.tcp.unaccepted:
            manifest = _published_with_unaccepted(manifest, state, store, settings, progress)
        complete.append(manifest.info)
        if writes and saved_memory:
            writes.complete(saved_memory)
        if stop:
            with progress.stage(Stage.STOP):
                kill(tree)
    return Saved(manifest, warnings, listening)


def _prepared(
    tree: Tree,
    spec: LaunchSpec,
    store: LocalStore,
    settings: EngineSettings,
    options: SaveOptions,
    digests: FileDigests,
    progress: Progress,
) -> _Preparation:
    """Check whether the kernel can be saved, and do everything before the freeze that may take time."""
    stop = options.stop
    if options.cause is Cause.AUTOSAVE:
        store.require_room_for_periodic()
    warnings = (
        _outer_connections(tree, spec, cut=not options.cause.spares_connections) if stop else []
    )
    chosen = plan(
        tree,
        settings,
        private_shm=spec.private_shm,
        own_sockets=spec.own_sockets.names,
        stop=stop,
        gpu_bytes=sum(gpu.memory_of(pids(tree)).values()),
    )
    earlier = EarlierSnapshots(store, spec.kernel_id, options.parent_snapshot_id)
    predecessor, earlier_gpu = earlier.predecessor()
    settle_packs(store, predecessor, options.cause, threads=settings.threads, progress=progress)
    if stop:
        open_files.learn(tree, digests.outlines)
    notebook, not_stored = notebooks.read(spec.jupyter)
    folder = _folder(tree, spec, store, settings, options, earlier)
    return _Preparation(
        chosen, earlier, predecessor, earlier_gpu, notebook, folder, [*warnings, *not_stored]
    )


def _folder(
    tree: Tree,
    spec: LaunchSpec,
    store: LocalStore,
    settings: EngineSettings,
    options: SaveOptions,
    earlier: EarlierSnapshots,
) -> FolderSave:
    """Return what saves the working folder, or does nothing if it is not to be in the snapshot."""
    is_saved = options.has_files or spec.working_folder.is_saved
    return FolderSave(
        tree.inside(spec.cwd),
        spec.cwd,
        spec.working_folder,
        store,
        settings,
        earlier_folder(earlier.with_files() if is_saved else None, store),
        options.parent_snapshot_id if options.has_own_folder else "",
        is_saved=is_saved,
    )


def _stored(
    state: Frozen,
    sources: Sequence[Source],
    gpu_packing: GpuPacking,
    store: LocalStore,
    settings: EngineSettings,
    predecessor: Predecessor | None,
    folder: FolderSave,
    progress: Progress,
) -> tuple[Packed, SavedFolder | None]:
    """Store `sources` while GPU memory is copied and stored, then the tables of digests of that memory, and the working folder."""
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
    packed = packed.and_also(others).and_also(storing(tables) if tables else Packed.of_nothing())
    files = folder.finish(progress)
    return (packed.and_also(files.packed), files.record) if files else (packed, None)


@contextmanager
def _naming_complete(complete: list[SnapshotInfo]) -> Iterator[None]:
    """Add the complete snapshot to the hint of a later error, so that it is not taken for lost."""
    try:
        yield
    except GpuCkptError as error:
        for info in complete:
            error.hint = f"{error.hint} The snapshot {info.snapshot_id} is complete.".lstrip()
        raise


def _sources(state: Frozen, memory: Sequence[Source]) -> tuple[list[ImageFile], list[Source]]:
    """Return the list of images, and the sources of all that the frozen tree consists of."""
    images, sources = _images(state)
    sources += memory
    sources += [FileSource(stream, path) for stream, path in state.captured_files.items()]
    if state.tcp.queues:  # what was received and not read
        sources.append(BytesSource(tcp_record.STREAM, state.tcp.queues))
    if facts := state.facts().encoded():
        sources.append(BytesSource(audit_records.STREAM, facts))
    return images, sources


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
        f"{some(sorted(replaced))}. The kernel and its snapshot keep the versions that it loaded."
    ]


def _paths(records: Sequence[CapturedFile | KeptFile | MappedFile]) -> Iterator[str]:
    return (record.path for record in records)


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


@contextmanager
def telling_a_loss(tree: Tree, what: str) -> Iterator[None]:
    """Raise KernelLost in place of an error if the kernel has ended or is ending. `what`: the participle of the operation ("saved").

    When a tree ends during an operation, each step fails in its own, misleading way. By the end of the block init has written the exit
    status, by which the daemon tells a kernel that ended by itself from one that is lost.
    """
    try:
        yield
    except OperationCancelled:
        raise
    except Exception as error:
        if not _has_ended(tree):
            raise
        if isinstance(error, GpuCkptError):
            cause = f"{error} ({error.details})" if error.details else str(error)
        else:
            cause = f"{type(error).__name__}: {error}"
        raise KernelLost(
            f"The kernel ended while it was being {what}.",
            hint="Resume it from its last snapshot, or restart it. Its log file, or the system's if memory was short, has the cause.",
            details=cause,
        ) from error


def _has_ended(tree: Tree) -> bool:
    """Return whether the tree has ended; if it is ending, wait until it has."""
    wait_until(lambda: not alive(tree) or not _is_ending(tree), timeout=_END_SECONDS)
    return not alive(tree) or _is_ending(tree)


def _is_ending(tree: Tree) -> bool:
    """Return whether one of the processes has ended or is ending whose end is that of the whole tree."""
    return any(map(processes.is_ending, (tree.init_pid, tree.keeper_pid, tree.kernel_pid)))


def _outer_connections(tree: Tree, spec: LaunchSpec, *, cut: bool) -> list[str]:
    """Return warnings of the connections with other processes that a suspend cuts; a save cuts none."""
    own = set(spec.own_ports)
    found = connections.survey(pids(tree)).outer
    return _cut(
        [str(end) for end in found if not own & {end.row.local.port, end.row.remote.port}], cut=cut
    )


def _lost_connections(state: Frozen, spec: LaunchSpec, *, cut: bool) -> list[str]:
    """Return warnings of the connections within the tree that a resume of this snapshot will not restore."""
    found = _unkept_connections(state, spec)
    unread = memoryview(state.tcp.queues)
    with RemadeConnections(
        state.tcp.connections, lambda at, length: bytes(unread[at : at + length]), rehearsal=True
    ) as made:
        found += made.lost
    return _cut(found, cut=cut)


def _unkept_connections(state: Frozen, spec: LaunchSpec) -> list[str]:
    """Return the names of inner connections that the snapshot lacks, except those on the kernel's own ports, whose peers reconnect."""
    own = set(spec.own_ports)
    return [lost.text for lost in state.tcp.lost if not own & set(lost.ports)]


def _listening(tree: Tree, spec: LaunchSpec) -> list[int]:
    """Return the ports on which programs of the tree listen, except the kernel's own."""
    found = {end.row.local.port for end in connections.listeners(pids(tree))}
    return sorted(found - set(spec.own_ports))


def _cut(found: Sequence[str], *, cut: bool) -> list[str]:
    if not found:
        return []
    shown = some(found)
    if not cut:
        raise KernelNotCheckpointable(
            f"The kernel has network connections that a suspend would cut: {shown}.",
            hint="Suspend it yourself if these connections can be made again, or close them.",
        )
    return [f"Network connections were cut: {shown}."]


def _published_with_unaccepted(
    manifest: Manifest,
    state: Frozen,
    store: LocalStore,
    settings: EngineSettings,
    progress: Progress,
) -> Manifest:
    """Store what clients in the tree have sent to listeners that have not accepted them; publish and return the manifest with it."""
    sent = state.tcp.take_unaccepted()
    source = BytesSource(unaccepted.STREAM, sent)
    packed = (
        pack([source], store, threads=settings.threads, progress=progress)
        if sent
        else Packed.of_nothing()
    )
    streams = [*manifest.streams, *packed.streams]
    complete = msgspec.structs.replace(manifest, streams=streams, connections=state.tcp.connections)
    with store.staged(complete) as staged:
        staged.publish()
    return complete


def settle_packs(
    store: LocalStore,
    predecessor: Predecessor | None,
    cause: Cause,
    *,
    threads: int,
    progress: Progress,
) -> None:
    """Look at all packs and, if there is time, read the doubtful ones of the predecessor. Raises StoreError, OperationCancelled.

    Another program may have changed them. A suspend that may have a deadline does not wait for that: it stores again what is in packs that
    were changed, and relies on the other doubtful ones, with a warning; they are read in the background.
    """
    checks = store.pack_checks
    doubtful = [name for name, trust in checks.look().items() if trust < Trust.SAME]
    unread: list[str] = []
    if predecessor is not None and cause not in _URGENT:
        unread = checks.holders(predecessor.digests, doubtful)

    def read(name: str) -> None:
        try:
            reading = read_pack(store.path_of(name), progress.check)
        except OSError as error:
            logger.warning("Pack %s cannot be read: %s", name, error)
            return
        if reading is not None:
            checks.note(name, reading)

    if unread:
        share_out(unread, lambda: read, min(threads, len(unread)))


def pack_problems(
    store: LocalStore, digests: Collection[bytes], cause: Cause
) -> tuple[list[str], list[str]]:
    """Return why a snapshot with these chunks could not be resumed, and warnings, a sentence each."""
    found = store.pack_checks.find(digests)
    if found.lost:
        return [
            f"{found.lost} of its chunks are in packs of the store that were removed, cut short or changed meanwhile."
            " The next attempt stores them again."
        ], []
    if not found.unread:
        return [], []
    if cause in _URGENT:
        return [], [
            f"{len(found.unread)} chunks of the snapshot are in packs that were copied, linked, cut short or indexed anew and not read"
            " since, and there was no time to read them. `jupyter gpuckpt verify` does so."
        ]
    try:
        store.check(found.unread)
    except StoreError as error:
        return [f"{error.message} The next attempt stores it again."], []
    return [], []
