"""Engine, store and host with the daemon's settings. Everything here blocks: call it in threads."""

from __future__ import annotations

import logging
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from ..daemon_settings import Settings
from ..engine import park as parking
from ..engine import placing, recovery
from ..engine.gpu import cuda
from ..engine.gpu.placement import Placement
from ..engine.settings import EngineSettings
from ..engine.tree import former_scratch, kept_secrets, server_files
from ..engine.tree import launch as trees
from ..engine.tree.standstill import Standstill
from ..engine.tree.tree import Tree
from ..errors import ConfigurationError, HostError, PrivilegeMissing, SnapshotNotFound, ToolMissing
from ..host import gpu, privileges, processes
from ..host.file_digests import FileDigests
from ..images.workers import processes as worker_processes
from ..model import LaunchSpec, Manifest, SaveOptions, SnapshotInfo
from ..place import Place
from ..progress import Progress
from ..protocol import Changes, GpuRoom, HostReport, Owner, ResumeRequest
from ..snapshot_records import SnapshotChange, SnapshotVariables, StoreUsage
from ..snapshots import arrivals, changes, resume, save, stored_secrets
from ..states import KernelState
from ..store.annotation_files import SUFFIX as ANNOTATIONS
from ..store.listing import Listed
from ..store.local import LocalStore
from . import host_report
from .resume_times import ResumeTimes
from .usage import Usage, differ

if TYPE_CHECKING:
    from ..snapshots.arrivals import Arrival
    from ..snapshots.resume import Resumed
    from ..snapshots.save import Saved
    from .records import KernelRecord

_log = logging.getLogger(__name__)

#: How often it is looked whether a kernel has loaded other programs and libraries.
_LEARN_SECONDS = 60.0
#: Checks of the doctor that are about programs; the other required ones are about rights.
_TOOLS = (["criu"], ["init"])


class Machine:
    """Access to engine, store and host. Thread-safe; store and report are made at first use."""

    def __init__(self, settings: Settings, place: Place) -> None:
        self._settings = settings
        # A data directory on a shared disk may serve several places.
        self._spill = settings.data / "spill" / place.key
        self._lock = threading.Lock()
        self._report: HostReport | None = None
        self._criu: Path | None = None
        self._store: LocalStore | None = None
        self.resume_times = ResumeTimes(settings.data)
        self._digests = FileDigests(settings.data / "file-digests")
        self._learned: dict[int, float] = {}
        #: Told of every change of a snapshot, in any thread; set before the store is first used.
        self.on_snapshot: Callable[[SnapshotChange], None] = lambda change: None

    @property
    def worker_threads(self) -> int:
        """Return how many threads an operation uses."""
        return self._settings.worker_threads

    def report(self, *, fresh: bool = False) -> HostReport:
        """Return what works here, what does not, and what would help. Kept, unless something that is needed is missing."""
        with self._lock:
            if fresh or self._report is None or not self._report.engine_available:
                self._criu = host_report.find_criu(self._settings)
                self._report = host_report.report(self._settings, self._criu, fresh=fresh)
            return self._report

    def warm_up(self) -> None:
        """Initialise CUDA, where there is a GPU, and what large resumes need: otherwise the first one would wait for it."""

        def initialise() -> None:
            worker_processes.warm_up(self.worker_threads)
            if gpu.gpus():
                cuda.available()

        threading.Thread(target=initialise, name="warm-up", daemon=True).start()

    def require_engine(self) -> None:
        """Raise ToolMissing or PrivilegeMissing where the engine cannot work."""
        self._engine()

    def launch(self, spec: LaunchSpec, exit_path: Path, owner: Owner) -> Tree:
        """Start a kernel; raises ToolMissing or PrivilegeMissing where the engine cannot work."""
        return trees.launch(spec, self._engine(), exit_path, owner.jupyter_runtime_dir)

    def protect_servers(self, tree: Tree, owner: Owner) -> None:
        """Keep the kernel from removing the info files of servers that have come since it was started; never raises."""
        server_files.protect(tree.init_pid, owner.jupyter_runtime_dir)

    def alive(self, tree: Tree) -> bool:
        """Return whether the tree's init still runs."""
        return trees.alive(tree)

    def kill(self, tree: Tree) -> None:
        """End a tree, or reap one that has ended."""
        trees.kill(tree)

    def kill_strays(self, exit_path: str) -> None:
        """End a tree that a daemon was starting when it was killed: nobody knows its pid, but its init names `exit_path`."""
        for pid in processes.every() if exit_path else ():
            if exit_path in processes.arguments(pid):
                _log.warning("ending process tree %d, which was left half started", pid)
                trees.kill_init(pid)

    def prepare_found(self, tree: Tree) -> None:
        """Prepare a tree that another daemon left, perhaps one of an older version; never raises."""
        former_scratch.lay_over(tree)

    def recover(self, tree: Tree) -> None:
        """Let a tree run on whose freeze was interrupted when a daemon was killed."""
        recovery.recover(tree)

    def remove_links_of_resume(self, record: KernelRecord) -> None:
        """Remove the files that a resume which was cut off laid beside a kernel's own."""
        possible = {info.snapshot_id for info in self.snapshots(record.kernel_id)}
        if record.parent_snapshot_id:
            possible.add(record.parent_snapshot_id)
        for snapshot_id in possible:
            placing.remove_links(self.store.manifest(snapshot_id))

    def stand_still(self, tree: Tree) -> None:
        """Stop all processes of a tree until `go_on`, which another daemon may call; raises FreezeFailed."""
        standstill = Standstill(tree)
        try:
            standstill.begin()
        except BaseException:
            standstill.end()
            raise

    def go_on(self, tree: Tree) -> None:
        """Let a tree run on that stands still; do nothing for one that does not."""
        standstill = Standstill.found(tree)
        if standstill is not None:
            standstill.end()

    def clear(self) -> None:
        """Remove what a daemon that was killed had spilled; nothing may be in flight."""
        shutil.rmtree(self._spill, ignore_errors=True)

    def usage(self, tree: Tree, before: Usage | None = None) -> Usage:
        """Measure what a tree uses.

        Its memory is counted page by page, which takes long for many gigabytes, unless it is about what it was `before`.
        """
        pids = trees.pids(tree)
        resident = sum(processes.resident_bytes(pid) for pid in pids)
        if (
            before is not None
            and before.resident_bytes
            and not differ(before.resident_bytes, resident)
        ):
            memory, resident = before.memory_bytes, before.resident_bytes
        else:
            memory = trees.memory_bytes(tree)
        on_gpu = gpu.memory_of(pids)
        busy = gpu.utilization_of(on_gpu) if on_gpu else None
        return Usage(
            memory,
            sum(on_gpu.values()),
            None if busy is None else min(sum(busy.values()), 100),
            resident,
        )

    def save(self, tree: Tree, spec: LaunchSpec, options: SaveOptions, progress: Progress) -> Saved:
        """Take a snapshot; with `options.stop` the tree is gone on return. On any error the kernel runs as before."""
        return save.save(
            tree,
            spec,
            self.store,
            self._engine(),
            options,
            digests=self._digests,
            progress=progress,
        )

    def learn_programs(self, tree: Tree) -> None:
        """Have the programs and libraries of a tree read in the background, so that a suspend need not; never raises."""
        now = time.monotonic()
        if now - self._learned.get(tree.init_pid, -_LEARN_SECONDS) >= _LEARN_SECONDS:
            self._learned[tree.init_pid] = now
            paths = set().union(*(processes.programs(pid) for pid in trees.pids(tree)))
            self._digests.learn(paths, most_bytes=0)

    def park(self, tree: Tree, progress: Progress, *, peer_access_off: bool) -> int:
        """Move a tree's GPU memory into RAM; return the bytes that were moved."""
        held = sum(gpu.memory_of(trees.pids(tree)).values())
        return parking.park(
            tree,
            self._engine(),
            gpu_bytes=held,
            peer_access_off=peer_access_off,
            progress=progress,
        )

    def unpark(self, tree: Tree, progress: Progress) -> None:
        """Move a tree's GPU memory back; raise FreezeFailed where the GPU has no room, and the tree stays parked."""
        parking.unpark(tree, progress)

    def gpu_room(self, record: KernelRecord, request: ResumeRequest) -> GpuRoom:
        """Return the GPU memory that a resume or unpark needs, and what is free where it would go."""
        found = Placement({}, 0, 0)
        if gpu.free_bytes():
            if record.state is KernelState.PARKED and record.tree is not None:
                found = parking.room(record.tree)
            elif record.state is KernelState.SUSPENDED:
                manifest = self.manifest(record, request.snapshot_id or record.snapshot_id)
                found = resume.gpu_room(manifest, request.visible_gpus)
        return GpuRoom(found.needed_bytes, found.free_bytes)

    def resume(
        self,
        manifest: Manifest,
        record: KernelRecord,
        exit_path: Path,
        progress: Progress,
        *,
        visible_gpus: str,
    ) -> Resumed:
        """Resume a kernel; raise ThawFailed, or the class that names the cause more precisely."""
        with self.resume_times.measured(manifest, progress):
            return resume.resume(
                manifest,
                self.store,
                self._engine(),
                exit_path=exit_path,
                jupyter_runtime_dir=record.owner.jupyter_runtime_dir,
                own_ports=record.spec.own_ports,
                visible_gpus=visible_gpus,
                digests=self._digests,
                progress=progress,
            )

    def secrets(self, record: KernelRecord) -> dict[str, Any]:
        """Return the secrets that the kernel was launched with, from its scratch or from its snapshot; raises StoreError."""
        if record.tree is not None:
            return kept_secrets.of_tree(record.tree)
        manifest = self.manifest(record, record.snapshot_id)
        return stored_secrets.of_snapshot(manifest, self.store)

    def launch_spec(self, snapshot_id: str) -> LaunchSpec:
        """Return how the kernel of a snapshot was started, as far as that is written down, with its secrets."""
        manifest = self.store.manifest(snapshot_id)
        secrets = stored_secrets.of_snapshot(manifest, self.store)
        return msgspec.structs.replace(manifest.launch.written_down(), secrets=secrets)

    def changes(self, snapshot_id: str) -> Changes:
        """Return what differs since a snapshot was taken."""
        return changes.changes(self.store.manifest(snapshot_id), self.store, self._digests)

    def check_arrival(self, manifest: Manifest) -> Arrival:
        """Return what keeps a kernel that was saved elsewhere from being resumed here."""
        return arrivals.check(manifest, self._digests)

    def manifest(self, record: KernelRecord, snapshot_id: str) -> Manifest:
        """Return the manifest of a kernel's own snapshot, its newest by default, or of the one it was made from; SnapshotNotFound."""
        kernel_id = record.kernel_id
        if not snapshot_id:
            snapshots = self.snapshots(kernel_id)
            if not snapshots:
                raise SnapshotNotFound(f"There is no snapshot of kernel {kernel_id}.")
            snapshot_id = snapshots[0].snapshot_id
        manifest = self.store.manifest(snapshot_id)
        if manifest.info.kernel_id != kernel_id and snapshot_id != record.parent_snapshot_id:
            raise ConfigurationError(f"Snapshot {snapshot_id} is not one of kernel {kernel_id}.")
        return manifest

    @property
    def store(self) -> LocalStore:
        """Return the store; raise StoreUnavailable."""
        with self._lock:
            if self._store is None:
                self._store = LocalStore(self._settings.store)
                self._store.on_change = self.on_snapshot
            return self._store

    def close(self) -> None:
        """Release the store and end what goes on in the background."""
        self._digests.close()
        with self._lock:
            if self._store is not None:
                self._store.close()
                self._store = None

    def snapshots(self, kernel_id: str | None) -> list[SnapshotInfo]:
        """List snapshots, newest first."""
        return self.store.snapshots(kernel_id)

    def deleted_snapshots(self) -> list[Listed]:
        """List the snapshots whose deletion can be undone. Does not open a store in which nothing was ever changed."""
        directory = self._settings.store / "manifests"
        return self.store.deleted() if any(directory.glob("*" + ANNOTATIONS)) else []

    def purge(self) -> list[str]:
        """Remove the snapshots that were deleted long enough ago; return their ids."""
        return self.store.purge()

    def store_usage(self) -> StoreUsage:
        """Return what all snapshots take."""
        return self.store.space()

    def variables(self, snapshot_id: str) -> SnapshotVariables:
        """Return the variables of a snapshot's kernel."""
        manifest = self.store.manifest(snapshot_id)
        return SnapshotVariables(manifest.info.kernel_id, manifest.variables)

    def summary(self, snapshot_id: str) -> dict[str, Any]:
        """Return a manifest without what must not leave the daemon: environment and connection key are in its launch record."""
        manifest = self.store.manifest(snapshot_id)
        told: dict[str, Any] = msgspec.to_builtins(
            {
                "info": manifest.info,
                "host": manifest.host,
                "method": manifest.method,
                "processes": manifest.processes,
                "gpu": manifest.gpu,
                "seconds_by_stage": manifest.seconds_by_stage,
            }
        )
        told["streams"] = [
            {"name": stream.name, "length": stream.length, "chunks": len(stream.chunks)}
            for stream in manifest.streams
        ]
        told["captured_files"] = len(manifest.captured)
        return told

    def _engine(self) -> EngineSettings:
        report = self.report()
        if self._criu is None or not report.engine_available:
            failed = [check.name for check in report.checks if check.required and check.ok is False]
            # The report's reason is that of the first.
            kind: type[HostError] = ToolMissing if failed[:1] in _TOOLS else PrivilegeMissing
            raise kind(report.reason, hint=report.hint)
        return EngineSettings(
            criu=self._criu,
            spill_dir=self._spill,
            threads=self._settings.worker_threads,
            memory_bytes=self._settings.memory_bytes,
            user_namespace=not privileges.suffice(),
        )
