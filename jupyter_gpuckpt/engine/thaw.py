"""The thaw of a frozen process tree: new namespaces, files and images in place, memory filled, GPU restored, tasks let go.

Covers: one restore as a transaction, of which a failure leaves nothing behind. Does not cover: whether the snapshot fits this machine
(`snapshots.resume`), the source of the bytes (the caller's `Content`). See also: docs/decisions/resumes.md.
"""

from __future__ import annotations

import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple, Self

from ..errors import CheckpointError, KernelLost, ThawDisturbed, ThawFailed
from ..host import commands, processes
from ..wire.file_records import KeptFile
from ..wire.manifest_records import LaunchSpec, Manifest
from ..wire.progress import Progress, Stage
from . import kept_file_copies
from .audit import fact_records as audit_records
from .audit.mending import mend
from .capture import clear
from .content import Content
from .criu import (
    action_script,
    file_images,
    inet_images,
    lock_images,
    memory_images,
    missing_files,
    owner_images,
    unix_images,
)
from .criu import cache as criu_cache
from .criu import command_lines as criu_options
from .criu import images as criu_images
from .criu import log_causes as criu_log
from .gpu import restore as gpu_restore
from .gpu.ferry import ferry_windows
from .gpu.ferry.ferry import FILES as GPU_FILES
from .gpu_files import GpuFiles
from .injection import task_memory
from .memory.filling import Filling
from .placing import Placing
from .settings import EngineSettings
from .tcp import record as tcp_record
from .tcp import unaccepted
from .tcp.remake import RemadeConnections
from .tree import affinity, fresh_randomness, server_files, socket_directories, user_namespaces
from .tree.launch import Namespaces, find, pids, start_namespaces, wait_until
from .tree.tree import Tree

#: How long a restore that has logged an error may take to make progress or to end.
_ERROR_SECONDS = 5.0
#: The content of a page that is nothing but a flag.
_FLAG = bytes([1]).ljust(criu_images.PAGE, b"\0")
#: Linux joins neighboring pages to one area. A larger area has other content.
_MAX_AREA = 1 << 20


class Thawed(NamedTuple):
    """A tree that runs again, the missing files that were created for it, and changed ports and addresses of sockets, old to new."""

    tree: Tree
    made: list[str]
    moved_ports: dict[int, int]
    moved_addresses: dict[str, str]
    #: What is not as it was and could not be mended, a sentence each.
    changed: list[str]
    #: TCP connections within the tree that could not be recreated, with the reason.
    lost_connections: list[str]


@dataclass
class _Restore:
    """The data that the steps of one thaw share."""

    manifest: Manifest
    content: Content
    settings: EngineSettings
    progress: Progress
    namespaces: Namespaces
    user_namespace: bool

    def __post_init__(self) -> None:
        self.content.use(self.inside(GPU_FILES))
        self.placing = Placing(self.manifest, self.inside, owners=not self.user_namespace)

    def inside(self, path: str) -> Path:
        return Path(f"/proc/{self.namespaces.init_pid}/root{path}")


class _RestoreWatch:
    """A watcher that kills a restore without progress: `criu restore` has no timeout of its own and can hang for ever.

    The restore gets less time when CRIU has logged an error: other tasks may wait for ever for one that failed.
    """

    def __init__(self, restore: _Restore, log: Path) -> None:
        self._init, self._progress, self._log = restore.namespaces.init_pid, restore.progress, log
        self._seconds = restore.settings.stall_seconds
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="restore-watch", daemon=True)
        self.killed = False
        #: The diagnosis of CRIU's log, read before the kill: the log disappears with init's mount namespace.
        self.diagnosis: criu_log.Diagnosis | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._end.set()
        self._thread.join()

    def _run(self) -> None:
        ticks, since = self._ticks(), time.monotonic()
        while not self._end.wait(0.25):
            if (now := self._ticks()) != ticks:
                ticks, since = now, time.monotonic()
            elif self._is_stalled(time.monotonic() - since):
                self.diagnosis = criu_log.diagnose(
                    self._log, fallback="The restore made no progress and was given up."
                )
                self.killed = True
                with suppress(ProcessLookupError):
                    os.kill(self._init, signal.SIGKILL)
                return

    def _is_stalled(self, seconds: float) -> bool:
        return seconds > self._seconds or (
            seconds > min(_ERROR_SECONDS, self._seconds) and criu_log.has_errors(self._log)
        )

    def _ticks(self) -> int:
        # CRIU's own work, including its reading, is visible only as CPU time.
        ticks = self._progress.ticks
        with suppress(OSError):  # no file can be opened
            ticks += processes.processor_ticks(self._init)
        return ticks


def thaw(  # noqa: PLR0913 - all but the first three by name
    manifest: Manifest,
    content: Content,
    settings: EngineSettings,
    *,
    exit_path: Path,
    jupyter_runtime_dir: str = "",
    own_ports: Sequence[int] | None = None,
    allowed_gpus: Collection[str] | None = None,
    kept: Sequence[KeptFile] = (),
    force: bool = False,
    is_copy: bool = False,
    in_namespaces: Callable[[int], None] = lambda init_pid: None,
    new: LaunchSpec | None = None,
    progress: Progress,
) -> Thawed:
    """Restore the tree of `manifest`; on return its tasks run.

    `own_ports`: the ports on which it must listen instead of those of its launch, in the same order. `allowed_gpus`: UUIDs of
    GPUs that may be used; None: all. `kept`: the files of which it gets copies. `force`: even if files are missing that it reads.
    `is_copy`: as in `fresh_randomness.renew`. `in_namespaces` is called with init's pid before anything is restored. `new`: of a new
    kernel that begins with the tree; its ids are this user's.
    Raises HostIncompatible, or FilesChanged, for missing files, ThawFailed, or the content's error; then nothing of the tree is left.
    """
    skeleton = manifest.method == "skeleton"
    ids = user_namespaces.for_resume(settings, manifest, is_new=new is not None)
    spilled = settings.spill_dir / f"restore-{exit_path.name}"
    directory = criu_options.IMAGES if skeleton else str(spilled)
    started: list[int] = []
    with ExitStack() as rollback, _system_errors_as_failures(started), ExitStack() as cleanup:
        # It comes last: if the clean-up fails, no tree is left that nobody knows.
        cleanup.push(partial(_without_error, rollback.pop_all))
        with progress.stage(Stage.NAMESPACES):
            connections = cleanup.enter_context(_connections(manifest, content))
            namespaces = start_namespaces(
                settings,
                "restore",
                ids=ids,
                exit_path=exit_path,
                private_shm=manifest.launch.private_shm,
                io_uring=manifest.launch.io_uring,
                options=[str(manifest.keeper_pid), "-"],
                argv=[
                    *criu_options.restore_command(
                        settings, directory, unprivileged=ids is not None
                    ),
                    *connections.criu_options,
                ],
                descriptors=connections.descriptors,
                cwd="/",
            )
            rollback.callback(namespaces.destroy)
            started.append(namespaces.init_pid)
            server_files.protect(namespaces.init_pid, jupyter_runtime_dir)
            in_namespaces(namespaces.init_pid)
        restore = _Restore(
            manifest, content, settings, progress, namespaces, user_namespace=ids is not None
        )
        images = cleanup.enter_context(_images(restore.inside(directory), keep=skeleton))
        cleanup.callback(restore.placing.remove_links)
        rollback.callback(restore.placing.remove_folders)
        with progress.stage(Stage.IMAGES):
            # The images go onto the kernel's own mount first; nothing else is changed before they are checked.
            content.images(images)
            restore.placing.check(images)
            memory_images.require_huge_pages(images)
            _mend_images(images, manifest, ids)
            kept_file_copies.stand_in(images, kept, settings.kept_dir, content.to_file)
            made = missing_files.put_in_place(
                images, _elsewhere(manifest, new), restore.placing.make_folders, force=force
            )
            rollback.callback(missing_files.remove, made)
            _open_new_files(images / "files.img", made, manifest, new)
            content.to_file(restore.placing.prepare())
            restore.placing.finish()
            not_new = fresh_randomness.renew(restore.inside, is_copy=is_copy)
            ports = _ports(manifest, own_ports)
            moved = _avoid_conflicts(restore, images, ports, is_new=new is not None)
            cleanup.callback(moved.release)
            connections.enter(images)
            filling = cleanup.enter_context(Filling(content.to_memory, progress, spilled))
            filling.prepare(manifest, images)
        by_windows = ferry_windows.is_short_for(manifest, filling.shared_bytes)
        gpu = cleanup.enter_context(
            GpuFiles(
                manifest,
                content,
                restore.inside,
                progress,
                other_bytes=filling.bytes,
                by_windows=by_windows,
            )
        )
        with _RestoreWatch(restore, images / "restore.log") as watch:
            _run_criu(restore, images, filling, watch, gpu)
        with progress.stage(Stage.AUDIT):
            tree = _restored(restore, images, exit_path)
            connections.finish({**ports, **moved.ports})
            changed = not_new + mend(
                tree,
                lambda: _facts(manifest, content),
                made if new is None else [*made, manifest.launch.log_path],
                manifest.launch.own_sockets.names,
            )
        gpu.finish_drivers()
        gpu_restore.restore(
            tree,
            manifest.gpu,
            manifest.host.gpus,
            allowed_gpus,
            progress,
            ferries_written=gpu.finish,
            wait_for=gpu.wait_for,
            file_of=gpu.file,
            read=content.to_window if by_windows else None,
        )
        with progress.stage(Stage.LET_GO):
            _continue_tasks(tree, manifest)
        namespaces.close()
    return Thawed(tree, made, moved.server_ports, moved.server_addresses, changed, connections.lost)


def _avoid_conflicts(
    restore: _Restore, images: Path, ports: Mapping[int, int], *, is_new: bool
) -> inet_images.Moved:
    """Edit the images so that the tree does not conflict with other programs; return the ports and addresses that changed.

    `ports`: of clients outside, old to new. `is_new`: it becomes a new kernel. Raises ThawFailed for a conflict that cannot be avoided: a
    lock that another program holds, or a name or a port that others know.
    """
    files, init_pid, launched = (
        images / "files.img",
        restore.namespaces.init_pid,
        restore.manifest.launch,
    )
    own_sockets, make_folders = launched.own_sockets, restore.placing.make_folders
    lock_images.require_free(images, restore.inside("/"))
    unix_images.rename(files, init_pid)
    paths = unix_images.listening_files(files, private_shm=launched.private_shm)
    for path in paths:
        # A temporary directory may have been removed meanwhile, or the snapshot comes from another machine.
        make_folders(Path(path).parent, 0o700)
    own = set(paths) & set(own_sockets.names) if own_sockets.folder else set[str]()
    if own and own_sockets.folder != own_sockets.place:
        make_folders(Path(own_sockets.folder), 0o700)
        socket_directories.replace(init_pid, own_sockets)
    if taken := (set(paths) - own) & unix_images.names_in_use():
        socket_directories.separate(init_pid, taken, restore.inside)
    return inet_images.move(files, ports, to_new=is_new)


def _mend_images(images: Path, manifest: Manifest, ids: user_namespaces.Ids | None) -> None:
    """Edit what CRIU would restore wrongly or refuse. `ids`: the owners in a user namespace."""
    file_images.mend(images / "files.img")
    criu_images.mend_scheduling(images)
    if ids is not None:
        owner_images.mend(images, ids, user_namespaces.Ids(manifest.uid, manifest.gid))


def _elsewhere(manifest: Manifest, new: LaunchSpec | None) -> Collection[str]:
    """Return the files that need not be where they were. `new`: as in `thaw`."""
    return manifest.traveling if new is None else {*manifest.traveling, manifest.launch.log_path}


def _open_new_files(
    files: Path, made: list[str], manifest: Manifest, new: LaunchSpec | None
) -> None:
    """Let files that were made begin empty, and a new kernel write to its own log. `new`: as in `thaw`."""
    file_images.rewind(files, made)
    if new is not None:
        Path(new.log_path).touch(mode=0o600)
        file_images.rename(files, {manifest.launch.log_path: new.log_path})


def _ports(manifest: Manifest, own_ports: Sequence[int] | None) -> dict[int, int]:
    """Return the kernel's own ports, former to present ones."""
    saved = manifest.launch.own_ports
    return dict(zip(saved, saved if own_ports is None else own_ports, strict=True))


def _facts(manifest: Manifest, content: Content) -> bytes:
    """Return the facts that the snapshot holds; none if there were too many. Raises the content's error."""
    length = next((one.length for one in manifest.streams if one.name == audit_records.STREAM), 0)
    if not 0 < length <= audit_records.MAX_BYTES:
        return b""
    return content.reader(audit_records.STREAM)(0, length)


def _without_error(
    call: Callable[[], object], kind: type[BaseException] | None, *_: object
) -> None:
    """Call a function at the end of a `with` block that no error leaves."""
    if kind is None:
        call()


def _connections(manifest: Manifest, content: Content) -> RemadeConnections:
    def read(stream: str) -> Callable[[int, int], bytes]:
        is_there = any(one.name == stream for one in manifest.streams)
        return content.reader(stream) if is_there else lambda offset, length: b""

    return RemadeConnections(manifest.connections, read(tcp_record.STREAM), read(unaccepted.STREAM))


@contextmanager
def _system_errors_as_failures(inits: Collection[int]) -> Iterator[None]:
    """Turn an OSError in the block into ThawFailed. `inits`: the first process of the namespaces, once it is started."""
    try:
        yield
    except OSError as error:
        if any(processes.state(pid) in (None, "Z", "X") for pid in inits):
            # Its mounts are gone then, so the error itself would mislead.
            raise ThawFailed(
                "The first process of the kernel was killed while the kernel was brought back.",
                hint="The snapshot is untouched. Look whether another program, or Linux for lack of memory, killed it; then try again.",
                details=f"process {inits}: {error}",
            ) from error
        raise ThawFailed(
            f"The kernel could not be brought back: {error.strerror or error}.",
            hint="The snapshot is untouched. Look whether memory or disk space is short, then try again.",
            details=str(error),
        ) from error


@contextmanager
def _images(directory: Path, *, keep: bool) -> Iterator[Path]:
    """Make a directory for images, and remove them at the end: on scratch they take memory. `keep`: the directory itself stays."""
    directory.mkdir(parents=True, exist_ok=True)
    try:
        yield directory
    finally:
        clear(directory)
        if not keep:
            shutil.rmtree(directory, ignore_errors=True)


def _run_criu(
    restore: _Restore, images: Path, filling: Filling, watch: _RestoreWatch, gpu: GpuFiles
) -> None:
    """Let init run CRIU, fill the memory and wait for CRIU's end; every task of the tree is stopped then."""
    init_pid = restore.namespaces.init_pid

    def fill() -> None:
        filling.finish(init_pid)
        gpu.ferries_may.set()

    with (
        restore.progress.stage(Stage.RESTORE),
        action_script.PostRestore(restore.inside(action_script.SOCKET), fill) as filler,
    ):
        # CRIU itself runs above every pid of the tree. The number in the manifest is not used: it is
        # untrusted.
        clocks = []
        if restore.user_namespace:
            clocks = criu_images.clocks(images)
            criu_cache.bring(restore.settings, restore.inside(criu_cache.DIRECTORY))
        restore.namespaces.go(criu_images.highest_pid(images) + 1, clocks)
        ending = ""
        try:
            status = os.waitstatus_to_exitcode(int(restore.namespaces.expect("criu")))
        except CheckpointError as error:
            # init itself ended: the watcher killed it, or another process did
            ending = f"was given up: {error.details}"
        else:
            ending = commands.ending(status) if status else ""
        filler.end()
        if filler.error is not None:
            raise _not_filled(filler.error, watch)
        if ending:
            raise _failure(restore, images, ending, watch)


def _restored(restore: _Restore, images: Path, exit_path: Path) -> Tree:
    """Return the restored tree, with all locks that it had, and with new random numbers to come."""
    manifest = restore.manifest
    init_pid = restore.namespaces.init_pid
    tree = find(init_pid, manifest.keeper_pid, manifest.kernel_pid, exit_path)
    lock_images.take_again(images, tree)
    _clear_fork_flags(images, tree)
    return tree


def _clear_fork_flags(images: Path, tree: Tree) -> None:
    """Clear the flags by which libraries notice a fork, so that each copy of a kernel draws new random numbers. Raises OSError.

    BoringSSL (in grpcio) and AWS-LC (in awscrt, and in programs written in Rust) keep the state of their generator in the process. They
    have a page that Linux empties in a forked process (MADV_WIPEONFORK), whose first byte they set to 1; if it is 0, they seed themselves
    anew. Two copies of a kernel would make the same keys without that where they do not mix in numbers of the processor. What else a
    program keeps in memory of that kind stays as it was: the program itself goes on, not a child of it.
    """
    areas = memory_images.wiped_on_fork(images)
    for pid in pids(tree) if areas else ():
        for start, end in areas.get(processes.nspid(pid) or 0, ()):
            for page in range(start, min(end, start + _MAX_AREA), criu_images.PAGE):
                if task_memory.read(pid, page, criu_images.PAGE) == _FLAG:
                    task_memory.write(pid, page, bytes(1))


def _not_filled(error: BaseException, watch: _RestoreWatch) -> BaseException:
    """Return the error for memory that was not filled: the watcher's, if it killed init meanwhile."""
    if not watch.killed:
        return error
    return ThawFailed(
        "The kernel's memory could not be read from the store: there was no progress, and the resume was given up.",
        hint="Look at the disk that the store is on, then try again. The snapshot is untouched.",
        details=str(error),
    )


def _failure(restore: _Restore, images: Path, ending: str, watch: _RestoreWatch) -> ThawFailed:
    """Return the error of a restore that failed. `ending`: how CRIU ended."""
    found = watch.diagnosis or criu_log.diagnose(
        images / "restore.log",
        errors=restore.namespaces.errors.text(),
        fallback=f"CRIU could not restore the kernel: it {ending}.",
    )
    hint = found.hint
    kind = ThawDisturbed if found.cause == criu_log.DISTURBED else ThawFailed
    if watch.diagnosis is not None and kind is ThawFailed:
        hint += " A file lock that another program holds can make a restore wait for ever."
    return kind(found.cause, hint=f"{hint} The snapshot is untouched.", details=found.details)


def _continue_tasks(tree: Tree, manifest: Manifest) -> None:
    """Send SIGCONT to all tasks that the user had not stopped, deepest first; return when the kernel runs."""
    saved = {process.pid: process for process in manifest.processes}
    stopped = {pid for pid, process in saved.items() if process.stopped}
    for pid in reversed(pids(tree)):
        nspid = processes.nspid(pid)
        if nspid in saved:
            affinity.apply(tree, pid, saved[nspid].processors)
        if nspid not in stopped:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
    if not wait_until(lambda: processes.state(tree.kernel_pid) not in ("T", "t"), timeout=10):
        raise KernelLost(
            "The restored kernel does not run.",
            hint="The snapshot is untouched. Try again.",
            details=f"process {tree.kernel_pid} is in state {processes.state(tree.kernel_pid)}",
        )
