"""Engine, store and host with the daemon's settings. All functions block: call them in threads."""

from __future__ import annotations

import logging
import shutil
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from ...engine import kept_file_copies, placing
from ...engine.gpu.placement import Placement
from ...engine.settings import EngineSettings, kept_dir
from ...engine.tree import kept_secrets, server_files
from ...engine.tree import launch as trees
from ...engine.tree.tree import Tree
from ...errors import (
    ConfigurationError,
    HostError,
    HostIncompatible,
    PrivilegeMissing,
    SnapshotNotFound,
    StoreError,
    ToolMissing,
)
from ...host import gpu, privileges, processes
from ...host.file_digests import FileDigests
from ...images import worker_processes
from ...store import bringing, stores
from ...store.annotation_files import SUFFIX as ANNOTATIONS
from ...wire.daemon_settings import Settings
from ...wire.folder_records import FolderComparison
from ...wire.manifest_records import LaunchSpec, Manifest, SaveOptions, SnapshotInfo
from ...wire.place import Place
from ...wire.progress import Progress
from ...wire.protocol import (
    CopyRequest,
    FilesChoice,
    GpuRoom,
    HostReport,
    Owner,
    ParkRequest,
    ResumeRequest,
)
from ...wire.snapshot_order import Making
from ...wire.snapshot_records import Changes, SnapshotChange, SnapshotVariables
from ...wire.states import KernelState
from ...wire.tool_branches import is_branch_of
from .. import host_report
from .ferry_choice import FerryChoice
from .ready_trees import ReadyTrees
from .record_leases import are_others_heard_of
from .resume_times import ResumeTimes
from .usage import Usage, counted
from .working_folders import WorkingFolders

if TYPE_CHECKING:
    from ...engine.memory.tracked_kernels import TrackedKernel, TrackedKernels
    from ...snapshots.arrivals import Arrival
    from ...snapshots.resume import Resumed
    from ...snapshots.save import Saved
    from ...snapshots.unpacked_snapshots import UnpackedSnapshots
    from ...store.local import LocalStore
    from ...store.read_only import ReadableStore, ReadOnlyStore
    from ...store.snapshot_listing import Listed
    from .kernel_records import KernelRecord

    #: Ensures that a store has a snapshot's chunks inside a block, for a data directory: those of a stub are fetched.
    LocalChunks = Callable[[Path, LocalStore, SnapshotInfo, Progress], AbstractContextManager[None]]

_log = logging.getLogger(__name__)

#: The interval of checks for programs and libraries that a kernel has newly loaded.
_LEARN_SECONDS = 60.0
#: Checks of the doctor that are about programs; the other required ones are about rights.
_TOOLS = (["criu"], ["init"])


class Machine:
    """A facade of engine, store and host. Thread-safe; store and report are created at first use.

    `on_snapshot`: called in any thread for every change of a snapshot. `ready`: given up where a resume lacks room.
    """

    def __init__(
        self,
        settings: Settings,
        place: Place,
        on_snapshot: Callable[[SnapshotChange], None] = lambda change: None,
        *,
        ready: ReadyTrees | None = None,
        local_chunks: LocalChunks,
    ) -> None:
        self._settings, self._on_snapshot = settings, on_snapshot
        self._local_chunks, self._ready = local_chunks, ready or ReadyTrees()
        self._are_others_there = partial(are_others_heard_of, settings.state, place)
        # A data directory on a shared disk may serve several places.
        self._spill = settings.data / "spill" / place.key
        self._lock = threading.Lock()
        self._in_other_stores: dict[Path, str] = {}
        self._report: HostReport | None = None
        self._criu: Path | None = None
        self._ferry = FerryChoice()
        self.folders = WorkingFolders(settings.data / "folders" / place.key)
        self._store: LocalStore | None = None
        #: Stores of other users, by their folders.
        self._read_only: dict[str, ReadOnlyStore] = {}
        self._unpacked: UnpackedSnapshots | None = None
        self.resume_times = ResumeTimes(settings.data)
        self._digests = FileDigests(settings.data / "file-digests")
        self._learned: dict[int, float] = {}
        #: Made by the first save.
        self._writes: TrackedKernels | None = None
        #: Numbers of snapshots that are to be made of former processes, by kernel: its other snapshots come after them.
        self.reserved_numbers: dict[str, int] = {}

    @property
    def worker_threads(self) -> int:
        """Return the number of threads of an operation."""
        return self._settings.worker_threads

    def report(self, *, fresh: bool = False) -> HostReport:
        """Return the report on this machine. It is cached, unless a requirement is missing."""
        with self._lock:
            if fresh or self._report is None or not self._report.engine_available:
                self._criu = host_report.find_criu(self._settings)
                self._report = host_report.report(self._settings, self._criu, fresh=fresh)
            return self._report

    def warm_up(self) -> None:
        """Initialize CUDA if there is a GPU; otherwise the first operation would wait for it."""

        def initialize() -> None:
            if gpu.gpus():
                from ...engine.gpu.driver import cuda  # noqa: PLC0415 - without a GPU, a launch does not need it

                cuda.available()

        threading.Thread(target=initialize, name="warm-up", daemon=True).start()

    def expect(self, raw_bytes: int) -> None:
        """Prepare for a save or resume of this size: a large one would wait for its worker processes; never raises."""
        worker_processes.warm_up(raw_bytes, self.worker_threads)

    def require_engine(self) -> None:
        """Raise ToolMissing or PrivilegeMissing if the engine cannot work here."""
        self._engine()

    def launch(self, spec: LaunchSpec, exit_path: Path, owner: Owner) -> Tree:
        """Start a kernel. Raises ToolMissing or PrivilegeMissing if the engine cannot work here."""
        spec = self._ferry.resolve(spec)
        return trees.launch(spec, self._engine(), exit_path, owner.jupyter_runtime_dir)

    def protect_servers(self, tree: Tree, owner: Owner) -> None:
        """Prevent the kernel from removing the info files of servers that started after it; never raises."""
        server_files.protect(tree.init_pid, owner.jupyter_runtime_dir)

    def alive(self, tree: Tree) -> bool:
        """Return whether the tree's init still runs."""
        return trees.alive(tree)

    def watch(self, tree: Tree) -> int | None:
        """Return a descriptor that is readable when the tree has ended; None if it has. Raises OSError."""
        return trees.watch(tree)

    def kill(self, tree: Tree) -> None:
        """End a tree, or reap one that has ended."""
        trees.kill(tree)

    def kill_strays(self, exit_path: str) -> None:
        """End a tree that a killed daemon was starting: its pid is unknown, but its init's arguments have `exit_path`."""
        for pid in processes.every() if exit_path else ():
            if exit_path in processes.arguments(pid):
                _log.warning("ending process tree %d, which was left half started", pid)
                trees.kill_init(pid)

    def recover(self, tree: Tree, *, stands_still: bool = False) -> None:
        """Let a tree run on, or stand still as before, after a freeze that the daemon's death interrupted."""
        from .. import late_modules  # noqa: PLC0415 - late: see there

        late_modules.recovery.recover(tree, stands_still=stands_still)

    def remove_links_of_resume(self, record: KernelRecord) -> None:
        """Remove the links that an interrupted resume left beside the user's files."""
        possible = {info.snapshot_id for info in self.snapshots(record.kernel_id)}
        if record.parent_snapshot_id:
            possible.add(record.parent_snapshot_id)
        for snapshot_id in possible:
            placing.remove_links(self.store.manifest(snapshot_id))

    def clear(self, kernel_ids: Collection[str]) -> None:
        """Remove the spill files of a killed daemon, and copies of files that no kernel uses; no operation may run."""
        self.folders.remove_others(kernel_ids)
        shutil.rmtree(self._spill, ignore_errors=True)
        kept_file_copies.collect(kept_dir(self._spill))

    def usage(self, tree: Tree, before: Usage | None = None) -> Usage:
        """Measure a tree's use of memory and GPUs.

        Memory is counted page by page, which is slow for many gigabytes, unless it is about the same as `before`.
        """
        pids = trees.pids(tree)
        memory, resident = counted(
            lambda: sum(processes.resident_bytes(pid) for pid in pids),
            lambda: trees.memory_bytes(tree),
            before,
        )
        on_gpu = gpu.memory_of(pids)
        busy = gpu.utilization_of(on_gpu) if on_gpu else None
        return Usage(
            memory,
            sum(on_gpu.values()),
            None if busy is None else min(sum(busy.values()), 100),
            resident,
        )

    def save(
        self, tree: Tree, spec: LaunchSpec, options: SaveOptions, new: Making, progress: Progress
    ) -> Saved:
        """Take a snapshot; with `options.stop` the tree is gone on return. On any error the kernel runs as before."""
        from .. import late_modules  # noqa: PLC0415 - late: see there

        above = max(new.above, self.reserved_numbers.get(spec.kernel_id, 0))
        return late_modules.save.save(
            tree,
            spec,
            self.store,
            self._engine(),
            options,
            new=new._replace(above=above),
            digests=self._digests,
            writes=self._tracked(tree),
            progress=progress,
        )

    def _tracked(self, tree: Tree) -> TrackedKernel | None:
        if not self._settings.track_writes:
            return None
        from .. import late_modules  # noqa: PLC0415 - late: see there

        with self._lock:
            if self._writes is None:
                self._writes = late_modules.tracked_kernels.TrackedKernels()
        return self._writes.of(tree)

    def learn_programs(self, tree: Tree) -> None:
        """Compute the digests of a tree's programs and libraries in the background, so that a suspend has them; never raises."""
        now = time.monotonic()
        if now - self._learned.get(tree.init_pid, -_LEARN_SECONDS) >= _LEARN_SECONDS:
            self._learned[tree.init_pid] = now
            paths = set().union(*(processes.programs(pid) for pid in trees.pids(tree)))
            self._digests.learn(paths, max_bytes=0)

    def park(self, tree: Tree, progress: Progress, request: ParkRequest, *, is_parked: bool) -> int:
        """Move a tree's GPU memory into RAM; return the bytes that were moved. `is_parked`: at most its contexts are left."""
        from .. import late_modules  # noqa: PLC0415 - late: see there

        held = sum(gpu.memory_of(trees.pids(tree)).values())
        if is_parked:
            if request.keep_contexts:
                return 0
            return late_modules.park.park_contexts(
                tree, self._engine(), gpu_bytes=held, progress=progress
            )
        return late_modules.park.park(
            tree,
            self._engine(),
            gpu_bytes=held,
            peer_access_off=request.peer_access_off,
            keep_contexts=request.keep_contexts,
            progress=progress,
        )

    def unpark(self, tree: Tree, progress: Progress) -> None:
        """Move a tree's GPU memory back. Raises FreezeFailed if the GPU has no room; the tree stays parked then."""
        from .. import late_modules  # noqa: PLC0415 - late: see there

        late_modules.park.unpark(tree, progress)

    def gpu_room(self, record: KernelRecord, request: ResumeRequest) -> GpuRoom:
        """Return the GPU memory that a resume or unpark needs, and the free memory of the GPU that it would use."""
        found = self._gpu_placement(record, request)
        if found.needed_bytes > found.free_bytes and self._ready.give_up():
            found = self._gpu_placement(record, request)
        return GpuRoom(found.needed_bytes, found.free_bytes)

    def _gpu_placement(self, record: KernelRecord, request: ResumeRequest) -> Placement:
        found = Placement({}, 0, 0)
        if gpu.free_bytes():
            from .. import late_modules  # noqa: PLC0415 - late: see there

            if record.state is KernelState.PARKED and record.tree is not None:
                found = late_modules.park.room(record.tree)
            elif record.state is KernelState.SUSPENDED:
                manifest = self.manifest(record, request.snapshot_id or record.snapshot_id)
                found = late_modules.resume.gpu_room(manifest, request.visible_gpus)
        return found

    def resume(
        self,
        manifest: Manifest,
        record: KernelRecord,
        exit_path: Path,
        progress: Progress,
        *,
        request: ResumeRequest,
        is_copy: bool,
    ) -> Resumed:
        """Resume a kernel; fetch its snapshot first if necessary. Raises ThawFailed, or the class that names the cause."""
        from .. import late_modules  # noqa: PLC0415 - late: see there

        launch = msgspec.structs.replace(manifest.launch, own_sockets=record.spec.own_sockets)
        manifest = msgspec.structs.replace(manifest, launch=launch)
        with (
            self._local_chunks(self._settings.data, self.store, manifest.info, progress),
            self.resume_times.measured(manifest, progress),
        ):
            resume = partial(
                late_modules.resume.resume,
                manifest,
                self.store,
                self._engine(),
                exit_path=exit_path,
                jupyter_runtime_dir=record.owner.jupyter_runtime_dir,
                own_ports=record.spec.own_ports,
                request=request,
                digests=self._digests,
                is_copy=is_copy,
                unpacked=self._unpacked_snapshots(),
                folder=self.folders.copy_of(record, manifest, self.store, self._engine()),
                progress=progress,
            )
            resumed = self._with_room(resume)
        if self._settings.near_bytes:
            with suppress(StoreError):  # recording the use is not essential
                self.store.stubs.note_use(manifest.info.snapshot_id)
        return resumed

    @contextmanager
    def files_put_back(
        self,
        manifest: Manifest,
        record: KernelRecord,
        choice: FilesChoice,
        making: Making,
        progress: Progress,
    ) -> Iterator[list[str]]:
        """Put the files of a snapshot into the kernel's working folder, as `WorkingFolders.put_back` does."""
        former = manifest
        if choice and record.snapshot_id:
            former = self.manifest(record, record.snapshot_id)
        with (
            self._local_chunks(self._settings.data, self.store, manifest.info, progress),
            self.folders.put_back(
                manifest, former, record, choice, making, self.store, self._engine(), progress
            ) as warnings,
        ):
            yield warnings

    def compare_files(
        self, first: Manifest | KernelRecord, second: Manifest | KernelRecord
    ) -> FolderComparison:
        """Compare the files of two moments, as `WorkingFolders.compare` does."""
        return self.folders.compare(first, second, self.store, self._engine())

    def copied_manifest(self, snapshot_id: str, store: str) -> Manifest:
        """Return the manifest of a snapshot of which copies are made. `store`: as in `CopyRequest`."""
        return self._store_at(store).manifest(snapshot_id)

    def copy(
        self,
        request: CopyRequest,
        manifest: Manifest,
        spec: LaunchSpec,
        exit_path: Path,
        owner: Owner,
        *,
        is_ready: bool = False,
    ) -> Resumed:
        """Start a new kernel from a snapshot of another one. Raises what a resume raises; then nothing of it is left.

        `spec`: of the new kernel. `is_ready`: it is to be a ready copy.
        """
        from .. import late_modules  # noqa: PLC0415 - late: see there

        progress, there = Progress(), ExitStack()
        if not request.store:
            there.enter_context(
                self._local_chunks(self._settings.data, self.store, manifest.info, progress)
            )
        with there:
            resume = partial(
                late_modules.resume.resume,
                manifest,
                self._store_at(request.store),
                self._engine(),
                exit_path=exit_path,
                jupyter_runtime_dir=owner.jupyter_runtime_dir,
                own_ports=spec.own_ports,
                request=ResumeRequest(visible_gpus=request.visible_gpus),
                digests=self._digests,
                is_copy=True,
                new=spec,
                unpacked=self._unpacked_snapshots(),
                progress=progress,
            )
            found = resume() if is_ready else self._with_room(resume)
        try:
            self.install_secrets(found.tree, spec)
        except BaseException:
            trees.kill(found.tree)
            raise
        return found

    def install_secrets(self, tree: Tree, spec: LaunchSpec) -> None:
        """Replace the secrets of a template's launch, which came with the memory of a copy: the next server needs the copy's own."""
        kept_secrets.install(tree.root, spec.secrets)

    def _with_room(self, resume: Callable[[], Resumed]) -> Resumed:
        """Resume a kernel; where there is no room for it, ready copies are given up for it."""
        try:
            return resume()
        except HostIncompatible:
            if not self._ready.give_up():
                raise
        return resume()

    def _unpacked_snapshots(self) -> UnpackedSnapshots:
        from .. import late_modules  # noqa: PLC0415 - late: see there

        with self._lock:
            if self._unpacked is None:
                self._unpacked = late_modules.unpacked_snapshots.UnpackedSnapshots()
            return self._unpacked

    def secrets(self, record: KernelRecord) -> dict[str, Any]:
        """Return the secrets of the kernel's launch, from its scratch or its snapshot. Raises StoreError."""
        if record.tree is not None:
            found = kept_secrets.of_tree(record.tree)
            if found is not None:
                return found
        # A tree that just disappeared was ended by a suspend; that suspend's snapshot is the newest.
        manifest = self.manifest(record, "" if record.tree else record.snapshot_id)
        return self._stored_secrets(manifest, self.store)

    def _stored_secrets(self, manifest: Manifest, store: ReadableStore) -> dict[str, Any]:
        """Return the secrets of a snapshot's kernel, which are beside its memory. Raises ObjectCorrupt, StoreUnavailable."""
        stream = manifest.stream(kept_secrets.STREAM)
        if stream.length > kept_secrets.MAX_SECRETS_BYTES:
            return {}
        from ...images.unpack import read_stream  # noqa: PLC0415 - slow to import, and a launch does not need it

        return kept_secrets.decoded(read_stream(stream, store))

    def launch_spec(self, snapshot_id: str, store: str = "") -> LaunchSpec:
        """Return the recorded launch spec of a snapshot's kernel, with its secrets. `store`: as in `CopyRequest`."""
        source = self._store_at(store)
        manifest = source.manifest(snapshot_id)
        secrets = self._stored_secrets(manifest, source)
        return msgspec.structs.replace(manifest.launch, secrets=secrets)

    def changes(self, snapshot_id: str, *, with_files: bool) -> Changes:
        """Return the differences between the files and the machine now and those of a snapshot. `with_files`: see `changes.changes`."""
        from .. import late_modules  # noqa: PLC0415 - late: see there

        return late_modules.changes.changes(
            self.store.manifest(snapshot_id), self.store, self._digests, with_files=with_files
        )

    def check_arrival(self, manifest: Manifest) -> Arrival:
        """Return the obstacles to resuming here a kernel that was saved elsewhere."""
        from .. import late_modules  # noqa: PLC0415 - late: see there

        return late_modules.arrivals.check(manifest, self._digests)

    def manifest(self, record: KernelRecord, snapshot_id: str) -> Manifest:
        """Return the manifest of a kernel's snapshot (default: its newest), its branch's origin, or of a tool's branch of it.

        Raises SnapshotNotFound.
        """
        kernel_id = record.kernel_id
        if not snapshot_id:
            snapshots = self.snapshots(kernel_id)
            if not snapshots:
                raise SnapshotNotFound(f"There is no snapshot of kernel {kernel_id}.")
            snapshot_id = snapshots[0].snapshot_id
        try:
            manifest = self.store.manifest(snapshot_id)
        except SnapshotNotFound:
            others = stores.others(self._settings.store, self.store)
            manifest = bringing.bring_from(self.store, others, snapshot_id)
        is_own = manifest.info.kernel_id == kernel_id or snapshot_id == record.parent_snapshot_id
        if not is_own and not is_branch_of(manifest.info.name, kernel_id):
            raise ConfigurationError(f"Snapshot {snapshot_id} is not one of kernel {kernel_id}.")
        return manifest

    @property
    def store(self) -> LocalStore:
        """Return the store. Raises StoreUnavailable."""
        with self._lock:
            if self._store is None:
                root, are_others_there = self._settings.store, self._are_others_there
                self._store = stores.open_free(root, are_others_there, self._on_snapshot)
                abandoned = stores.abandoned(root, self._store, are_others_there)
                if abandoned:
                    take_in = partial(bringing.take_all_in, self._store, abandoned)
                    threading.Thread(target=take_in, name="take in", daemon=True).start()
            return self._store

    def _store_at(self, folder: str) -> LocalStore | ReadOnlyStore:
        """Return the store in a folder, which is only read; without a folder the daemon's own."""
        if not folder:
            return self.store
        from .. import late_modules  # noqa: PLC0415 - late: see there

        with self._lock:
            if folder not in self._read_only:
                self._read_only[folder] = late_modules.read_only.ReadOnlyStore(Path(folder))
            return self._read_only[folder]

    @property
    def opened_store(self) -> LocalStore | None:
        """The store, if it was needed already."""
        return self._store

    def finder_elsewhere(self) -> Callable[[str], bool]:
        """Return a function that returns whether the store of another daemon has, or may have, a snapshot."""
        return stores.finder_elsewhere(self._settings.store, self.store)

    def bring(self, record: KernelRecord) -> None:
        """Copy a kernel's snapshots from the stores of other daemons into this one. Raises SnapshotNotFound if the record's is nowhere."""
        others = stores.others(self._settings.store, self.store)
        bringing.bring_kernel(self.store, others, record.kernel_id, self._in_other_stores)
        if record.snapshot_id:
            self.store.manifest(record.snapshot_id)

    def close(self) -> None:
        """Release the store and stop background work."""
        self._digests.close()
        with self._lock:
            if self._unpacked is not None:
                self._unpacked.close()
                self._unpacked = None
            if self._store is not None:
                self._store.close()
                self._store = None

    def snapshots(self, kernel_id: str | None) -> list[SnapshotInfo]:
        """List snapshots, newest first."""
        return self.store.snapshots(kernel_id)

    def deleted_snapshots(self) -> list[Listed]:
        """List the snapshots whose deletion can be undone. It does not open a store that was never changed."""
        roots = stores.all_of(self._settings.store)
        any_annotated = any(any(root.glob(f"manifests/*{ANNOTATIONS}")) for root in roots)
        return self.store.deleted() if any_annotated else []

    def variables(self, snapshot_id: str) -> SnapshotVariables:
        """Return the variables of a snapshot's kernel."""
        manifest = self.store.manifest(snapshot_id)
        return SnapshotVariables(manifest.info.kernel_id, manifest.variables)

    def _engine(self) -> EngineSettings:
        report = self.report()
        if self._criu is None or not report.engine_available:
            failed = [check.name for check in report.checks if check.required and check.ok is False]
            # The report's reason is that of the first failed check.
            kind: type[HostError] = ToolMissing if failed[:1] in _TOOLS else PrivilegeMissing
            raise kind(report.reason, hint=report.hint)
        return EngineSettings(
            criu=self._criu,
            spill_dir=self._spill,
            threads=self._settings.worker_threads,
            memory_bytes=self._settings.memory_bytes,
            user_namespace=not privileges.suffice(),
            own_folders=(self._settings.data, self._settings.store),
        )
