"""The records that describe a snapshot, shared by daemon and clients.

Sizes are in bytes, times in seconds, pids those of the kernel's namespace.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import Any, Literal

import msgspec

from ..errors import ObjectCorrupt
from .chunk_parts import Part, decoded_parts
from .file_records import KeptFile, MappedFile, OpenFile
from .folder_records import FolderRules, SavedFolder
from .own_sockets import OwnSockets

#: The version of packs and manifests. A reader refuses a higher one.
FORMAT_VERSION = 1

#: The path of the engine's private tmpfs inside every kernel's mount namespace. It is part of the format, because images name files
#: below it. Every user must be able to use or create its mount point.
SCRATCH = "/dev/shm/.gpuckpt"  # noqa: S108 - a tmpfs of the kernel's own is mounted there

#: The prefix of the links that CRIU makes for files whose name is gone or taken (criu/files-reg.c).
LINK_REMAP = "link_remap."


class Chunk(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A run of bytes with its digest. An empty digest stands for zeros, which are not stored.

    A chunk with `parts` is composed: it is not stored itself, its bytes are those of its parts, one after the other, all of which
    lie in chunks that are stored.
    """

    digest: bytes
    length: int
    #: The digest, start and length of each part: 32, 4 and 4 bytes, little-endian.
    parts: bytes = b""

    def stored(self) -> Iterator[Part]:
        """Yield the stored bytes that the chunk consists of, in order; none for zeros."""
        if self.parts:
            yield from decoded_parts(self.parts)
        elif self.digest:
            yield Part(self.digest, 0, self.length)


class Stream(msgspec.Struct, frozen=True):
    """A named sequence of bytes, cut into chunks: a process's private pages, a GPU staging file, the images ..."""

    name: str
    length: int
    chunks: list[Chunk]


class ImageFile(msgspec.Struct, frozen=True):
    """A file that CRIU wrote, at `offset` of the stream `images` or, if `stream` is set, in a stream of its own."""

    name: str
    length: int
    offset: int = 0
    stream: str = ""


class CapturedFile(msgspec.Struct, frozen=True):
    """A file that CRIU does not save: in the private /dev/shm, on the scratch tmpfs, or a `link_remap` link.

    `kind` is file, directory, fifo, symlink or hardlink (`target`: an earlier path with the same inode, or the symlink's text).
    """

    path: str
    kind: str
    mode: int = 0o600
    uid: int = 0
    gid: int = 0
    mtime_ns: int = 0
    target: str = ""
    stream: str = ""


class Process(msgspec.Struct, frozen=True):
    """A process of the tree. `stopped`: the user had stopped it, so it stays stopped. `pages`: the name of its stream, if any.

    `processors`: the CPUs of threads that may not run on all of the tree's CPUs, by the thread's id.
    """

    pid: int
    parent: int
    name: str
    stopped: bool = False
    pages: str = ""
    processors: dict[int, list[int]] = {}


class GpuProcess(msgspec.Struct, frozen=True):
    """A process with a CUDA context. `staging`: paths of its GPU memory as files on scratch; empty: it is in private memory.

    `by_gpu`: the bytes that it had on each GPU, by UUID; empty if the driver did not report them.
    """

    pid: int
    staging: list[str]
    memory_bytes: int
    by_gpu: dict[str, int] = {}


class Gpu(msgspec.Struct, frozen=True):
    """A GPU as NVML reports it."""

    uuid: str
    name: str
    memory_bytes: int


class SocketOption(msgspec.Struct, frozen=True, array_like=True):
    """A socket option as getsockopt(2) returned it."""

    level: int
    name: int
    value: bytes


class TcpEnd(msgspec.Struct, frozen=True):
    """One end of a TCP connection. `inode`: its number in CRIU's images. Addresses have the form of Python's sockets.

    `unread`: the number of its bytes in the stream of all queues, in which the ends follow each other.
    """

    inode: int
    family: int
    local: list[str | int]
    remote: list[str | int]
    #: The flags of the open file (man 2 fcntl, F_GETFL).
    flags: int
    options: list[SocketOption]
    unread: int = 0
    #: Whether it is shut down for sending and for receiving.
    sent_all: bool = False
    reads_no_more: bool = False


class TcpConnection(msgspec.Struct, frozen=True):
    """A TCP connection with both ends in the tree. It has one end if the other was closed, or if it was not accepted yet (`waiting`).

    `name`: the text for users. `sent`: the number of bytes that were sent before it was accepted, in a stream of their own.
    """

    name: str
    ends: list[TcpEnd]
    waiting: bool = False
    sent: int = 0


class Host(msgspec.Struct, frozen=True):
    """The properties of the machine of a snapshot on which a resume depends."""

    name: str
    machine: str
    kernel_release: str
    cpu_flags: list[str]
    driver_version: str
    gpus: list[Gpu]
    #: The home directory of the user who took the snapshot.
    home: str
    #: The id of the machine's last start (man 4 random): device and inode numbers mean nothing in another one.
    boot_id: str


#: The only variables of a launch's environment that are stored, because a resume needs them. Others may be secret.
WRITTEN_VARIABLES = ("CUDA_VISIBLE_DEVICES",)


class LaunchSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The description of a kernel's start, sent by the provisioner. `env` is complete; the engine adds only what it must.

    Records and manifests contain the result of `written_down`. Default values are not stored, so that a version without a
    feature can read the records of those who do not use it.
    """

    kernel_id: str
    argv: list[str]
    env: dict[str, str]
    cwd: str
    log_path: str
    umask: int = 0o022
    private_shm: bool = True
    #: Whether programs may use io_uring, which cannot be saved. Without it they fall back to epoll.
    io_uring: bool = False
    #: Who copies GPU memory: the driver, or this project's own ferry (`engine/gpu/ferry/ferry.py`).
    gpu_copy: Literal["driver", "own"] = "driver"
    #: What happens to the kernel when another machine has taken its session over; `auto`: `pause` if its owner is a script.
    on_lost_lease: Literal["auto", "continue", "pause"] = "auto"
    #: Patterns of files that travel with snapshots (`snapshots.kept_files`).
    keep_files: list[str] = []
    #: What of `cwd` is in snapshots.
    working_folder: FolderRules = FolderRules()
    #: The kernel's own TCP ports, or unix sockets, whose peers reconnect by themselves (Jupyter's five).
    own_ports: list[int] = []
    own_sockets: OwnSockets = OwnSockets()
    #: A description for the next server, from which it lists the kernel (kernelspec, connection_info, sessions, kernel_info ...). It
    #: is opaque to the daemon.
    jupyter: dict[str, Any] = {}
    #: Its secret part, e.g. the connection key, readable only for those who can read the kernel's memory (`manager_secrets`).
    secrets: dict[str, Any] = {}

    def written_down(self) -> LaunchSpec:
        """Return a copy without `secrets` and without the environment, except a few variables."""
        env = {name: self.env[name] for name in WRITTEN_VARIABLES if name in self.env}
        return msgspec.structs.replace(self, env=env, secrets={})


class Variable(msgspec.Struct, frozen=True, gc=False):
    """A variable of a kernel's user: its class, its size and a short description.

    The size of a value on a GPU is that on the GPU; its kind then ends in ` on cuda:0`.
    """

    name: str
    kind: str
    bytes: int = 0
    summary: str = ""


class Variables(msgspec.Struct, frozen=True):
    """All variables of a kernel at one moment, biggest first. They are opaque to the daemon.

    `fingerprints`: by name, equal for equal values; missing for values without one. `complete`: no variable is missing.
    """

    listed: list[Variable] = []
    fingerprints: dict[str, str] = {}
    complete: bool = True


#: The most characters of a snapshot's title.
MAX_TITLE = 300
#: The number of variables in the record of a snapshot.
SHOWN_VARIABLES = 20


class Sizes(msgspec.Struct, frozen=True, gc=False):
    """The sizes of a snapshot in bytes.

    raw: memory and images before compression; stored: the compressed bytes to which it refers; new: those of them that were not
    in the store before; gpu: the GPU memory in raw.
    """

    raw_bytes: int = 0
    stored_bytes: int = 0
    new_bytes: int = 0
    gpu_bytes: int = 0


class Cause(StrEnum):
    """The reason for taking a snapshot."""

    MANUAL = "manual"
    IDLE = "idle"
    #: Taken of an idle kernel because memory was short.
    MEMORY = "memory"
    SHUTDOWN = "shutdown"
    RECLAIM = "reclaim"
    AUTOSAVE = "autosave"
    #: Taken before a rollback to an older snapshot.
    ROLLBACK = "rollback"
    #: Taken before a restart of the kernel.
    RESTART = "restart"
    #: Taken by a tool for programs (`tools/`), for instance an AI agent's.
    TOOL = "tool"

    @property
    def automatic(self) -> bool:
        """Return whether the snapshot was taken without a user's request for it."""
        return self is not Cause.MANUAL

    @property
    def spares_connections(self) -> bool:
        """Return whether a kernel is not suspended for this reason if that would cut its network connections."""
        return self in {Cause.IDLE, Cause.MEMORY}


class SaveOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a save and the names of its snapshot. `stop` makes it a suspend, which ends the process tree."""

    stop: bool = False
    #: The path of the notebook, or another name of the kernel.
    name: str = ""
    title: str = ""
    #: Whether retention never removes the snapshot.
    pinned: bool = False
    cause: Cause = Cause.MANUAL
    variables: Variables | None = None
    #: Whether the GPU memory is parked, and stays parked.
    parked: bool = False
    #: Whether the agent has switched off peer access between the GPUs of the kernel's own process (`engine/gpu/gpu_refusals.py`).
    peer_access_off: bool = False
    #: Whether the tree stands still already; it does so also after a failure.
    stands_still: bool = False
    #: As in `SnapshotInfo`.
    cell: int = 0
    in_cell: bool = False
    #: Whether the files of the working folder are in it.
    has_files: bool = False
    #: Of a branch: the snapshot from which it was made, and whether it has a working folder for itself.
    parent_snapshot_id: str = ""
    has_own_folder: bool = False


class SnapshotInfo(msgspec.Struct, frozen=True, gc=False):
    """A snapshot's entry in lists. Stores keep ten thousand in memory, so they are excluded from garbage collection, which is slow."""

    snapshot_id: str
    kernel_id: str
    created: float
    reason: str  # save | suspend
    name: str = ""  # what the user sees: notebook path or kernelspec name
    sizes: Sizes = Sizes()
    frozen_seconds: float = 0.0
    seconds: float = 0.0
    host_name: str = ""
    cause: Cause = Cause.MANUAL
    #: Whether retention never removes it.
    pinned: bool = False
    #: The user's title and note. Later changes are in a file beside the manifest (`store/annotation_files.py`).
    title: str = ""
    note: str = ""
    #: The kernel's biggest variables; empty if they are not known.
    variables: list[Variable] = []
    #: The execution count of the last cell that had begun, 0 if none is known, and whether it ran.
    cell: int = 0
    in_cell: bool = False
    #: Its place in the order of its kernel's snapshots (`snapshot_order.py`).
    number: int = 0
    #: Whether it has the files of the working folder.
    has_files: bool = False

    @property
    def heading(self) -> str:
        """Return the user's title, else "After [5]" or "During [5]", else ''. No source of cells: only remotes are encrypted."""
        if self.title or not self.cell:
            return self.title
        return f"During [{self.cell}]" if self.in_cell else f"After [{self.cell}]"


class Manifest(msgspec.Struct, frozen=True):
    """A snapshot's table of contents. It is written last: without it the snapshot does not exist."""

    info: SnapshotInfo
    launch: LaunchSpec
    host: Host
    #: The method. skeleton: the engine saved the private pages. plain: CRIU wrote everything (the fallback).
    method: str
    keeper_pid: int
    kernel_pid: int
    #: The highest pid or thread id: processes that run in the namespace before the restore must have higher ones.
    highest_pid: int
    processes: list[Process]
    images: list[ImageFile]
    streams: list[Stream]
    captured: list[CapturedFile] = []
    #: Files that CRIU is to find; the snapshot has their content for machines on which they are others.
    kept: list[KeptFile] = []
    gpu: list[GpuProcess] = []
    mapped: list[MappedFile] = []
    #: Other files that it had open or mapped and that are not in the snapshot.
    open_files: list[OpenFile] = []
    #: The connections within the tree; their undelivered bytes are in the stream `tcp`.
    connections: list[TcpConnection] = []
    #: The user and group ids of the kernel's start, as it sees them.
    uid: int = 0
    gid: int = 0
    #: The names of connections that could not be saved.
    lost_connections: list[str] = []
    seconds_by_stage: dict[str, float] = {}
    #: The kernel's variables; None if they are not known.
    variables: Variables | None = None
    #: When the file of the notebook in the snapshot was last written, in seconds since the epoch; 0: there is none in it.
    notebook_modified: float = 0.0
    #: The working folder, whose content is in streams of its own; None: it is not in the snapshot.
    folder: SavedFolder | None = None

    @property
    def traveling(self) -> set[str]:
        """The paths of the files that are in the snapshot."""
        return {one.path for one in self.captured} | {one.path for one in self.kept}

    def stream(self, name: str) -> Stream:
        """Return the stream of this name. Raises ObjectCorrupt."""
        for stream in self.streams:
            if stream.name == name:
                return stream
        raise ObjectCorrupt(
            f"Snapshot {self.info.snapshot_id} lacks its part {name}.",
            hint="It cannot be resumed; resume an older one.",
        )
