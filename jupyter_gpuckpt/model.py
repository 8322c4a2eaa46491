"""The records that describe a snapshot, shared by daemon and clients.

Sizes in bytes, times in seconds, pids as the kernel sees them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import Annotated, Any, NamedTuple

import msgspec

from .errors import ObjectCorrupt

#: Version of packs, and of manifests in which every chunk is stored whole. A reader refuses a higher one.
FORMAT_VERSION = 1
#: Version of manifests that have composed chunks (`Chunk.parts`): older releases would take those for missing.
COMPOSED_VERSION = 2

#: Where the engine's private tmpfs lies inside every kernel's mount namespace. Part of the format: images name files below it.
#: Its mount point must be there, or be made, for every user.
SCRATCH = "/dev/shm/.gpuckpt"  # noqa: S108 - a tmpfs of the kernel's own is mounted there
#: Where it lay in the snapshots of earlier versions.
FORMER_SCRATCH = "/run/gpuckpt"

#: Begins the names of the links that CRIU makes for files whose name is gone or taken (criu/files-reg.c).
LINK_REMAP = "link_remap."


class Part(NamedTuple):
    """A part of a composed chunk: `length` bytes from `start` of the stored chunk with this digest."""

    digest: bytes
    start: int
    length: int


_PART = struct.Struct("<32sII")
#: Bytes that a part takes in `Chunk.parts`.
PART_BYTES = _PART.size


def encoded_parts(parts: Iterable[Part]) -> bytes:
    """Return parts as a chunk holds them."""
    return b"".join(_PART.pack(*part) for part in parts)


def part_digests(parts: bytes) -> Iterator[bytes]:
    """Yield the digests that encoded parts name; a last part that is cut short names none."""
    whole = len(parts) - len(parts) % PART_BYTES
    return (digest for digest, _, _ in _PART.iter_unpack(parts[:whole]))


class Chunk(msgspec.Struct, frozen=True, array_like=True):
    """A run of bytes with its digest. An empty digest stands for zeros, which are not stored.

    A chunk with `parts` is composed: it is not stored itself, its bytes are those of its parts, one after the other, all of which
    lie in chunks that are stored.
    """

    digest: bytes
    length: int
    #: Digest, start and length of each part: 32, 4 and 4 bytes, little-endian.
    parts: bytes = b""

    def stored(self) -> Iterator[Part]:
        """Yield the stored bytes that the chunk consists of, in order; none for zeros."""
        if self.parts:
            yield from map(Part._make, _PART.iter_unpack(self.parts))
        elif self.digest:
            yield Part(self.digest, 0, self.length)


class Stream(msgspec.Struct, frozen=True):
    """A named sequence of bytes, cut into chunks: a process's private pages, a GPU staging file, the images ..."""

    name: str
    length: int
    chunks: list[Chunk]


class ImageFile(msgspec.Struct, frozen=True):
    """One file that CRIU wrote, at `offset` of the stream `images` (or, where `stream` is set, a stream of its own)."""

    name: str
    length: int
    offset: int = 0
    stream: str = ""


class CapturedFile(msgspec.Struct, frozen=True):
    """A file that CRIU leaves to us: in the private /dev/shm, on the scratch tmpfs, or a `link_remap` link.

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
    """A process of the tree. `stopped`: the user had stopped it, so it stays stopped. `pages`: name of its stream, if any.

    `processors`: those that a thread is limited to, by the thread's id, of threads that may not run on all of the tree's.
    """

    pid: int
    parent: int
    name: str
    stopped: bool = False
    pages: str = ""
    processors: dict[int, list[int]] = {}


class GpuProcess(msgspec.Struct, frozen=True):
    """A process with a CUDA context. `staging`: paths of its GPU memory as files on scratch; empty: it lies in private memory.

    `by_gpu`: the bytes that it had on each GPU, by UUID; empty where the driver did not tell.
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


class MappedFile(msgspec.Struct, frozen=True):
    """A program or library that must be the same at a resume. `digest`: BLAKE3 of its content; empty where it was not known."""

    path: str
    length: int
    build_id: str = ""
    digest: str = ""


class SocketOption(msgspec.Struct, frozen=True, array_like=True):
    """What getsockopt(2) gave."""

    level: int
    name: int
    value: bytes


class TcpEnd(msgspec.Struct, frozen=True):
    """One end of a TCP connection. `inode`: its number in CRIU's images. Addresses as Python's sockets have them.

    `unread`: how many bytes of the stream of all queues are its own; the ends follow each other there.
    """

    inode: int
    family: int
    local: list[str | int]
    remote: list[str | int]
    #: Those of the open file (man 2 fcntl, F_GETFL).
    flags: int
    options: list[SocketOption]
    unread: int = 0
    #: Shut down for sending, for receiving.
    sent_all: bool = False
    reads_no_more: bool = False


class TcpConnection(msgspec.Struct, frozen=True):
    """A TCP connection that the tree had with itself.

    One end: the other was closed, or nobody has accepted the connection yet (`waiting`). `name` is what users see.
    """

    name: str
    ends: list[TcpEnd]
    waiting: bool = False


class Host(msgspec.Struct, frozen=True):
    """The machine a snapshot was taken on, as far as a resume depends on it."""

    name: str
    machine: str
    kernel_release: str
    cpu_flags: list[str]
    driver_version: str = ""
    gpus: list[Gpu] = []


#: Of a launch's environment only these are written down; a resume asks for them. Others may be tokens.
WRITTEN_VARIABLES = ("CUDA_VISIBLE_DEVICES",)


class LaunchSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """How a kernel is started: what the provisioner sends. `env` is complete, nothing is added but what the engine must.

    A record or manifest holds what `written_down` returns; one of an older version holds everything.

    Defaults are left out where it is stored, so that older versions read what they know.
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
    #: TCP ports of the kernel's own whose peers connect again by themselves (Jupyter's five).
    own_ports: list[int] = []
    #: Opaque to the house: what the door needs to bring the kernel back in a new server (kernelspec, connection_info,
    #: sessions, kernel_info ...).
    jupyter: dict[str, Any] = {}
    #: What else the door needs and nobody may read who cannot read the kernel's memory: the connection key (`door_secrets`).
    secrets: dict[str, Any] = {}

    def written_down(self) -> LaunchSpec:
        """Return it without what is secret: the environment, but for a few variables, and `secrets`."""
        env = {name: self.env[name] for name in WRITTEN_VARIABLES if name in self.env}
        return msgspec.structs.replace(self, env=env, secrets={})


class Variable(msgspec.Struct, frozen=True, gc=False):
    """A value that a kernel's user gave a name: its class, its size (of one on a GPU, there: its kind ends in ` on cuda:0`),
    and a few words."""

    name: str
    kind: str
    bytes: int = 0
    summary: str = ""


class Variables(msgspec.Struct, frozen=True):
    """All variables of a kernel at one moment, biggest first. Opaque to the house.

    `fingerprints`: equal for equal values, by name; without those that cannot be had. `complete`: there are no others.
    """

    listed: list[Variable] = []
    fingerprints: dict[str, str] = {}
    complete: bool = True


#: How many of its variables the record of a snapshot shows.
SHOWN_VARIABLES = 20


class Sizes(msgspec.Struct, frozen=True, gc=False):
    """What a snapshot weighs: raw = memory and images before compression; stored = compressed bytes it refers to; new = of
    these, bytes that were not in the store before; gpu = GPU memory among raw."""

    raw_bytes: int = 0
    stored_bytes: int = 0
    new_bytes: int = 0
    gpu_bytes: int = 0


class Cause(StrEnum):
    """Why a snapshot was taken."""

    MANUAL = "manual"
    IDLE = "idle"
    SHUTDOWN = "shutdown"
    RECLAIM = "reclaim"
    AUTOSAVE = "autosave"
    #: Before the kernel went back to an older snapshot.
    ROLLBACK = "rollback"
    #: Before the kernel was restarted.
    RESTART = "restart"

    @property
    def automatic(self) -> bool:
        """Whether nobody asked for this very snapshot."""
        return self is not Cause.MANUAL


class SaveOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a save, and what its snapshot is called. `stop` makes it a suspend: the process tree ends with it."""

    stop: bool = False
    #: The notebook, or what else the kernel belongs to.
    name: str = ""
    title: str = ""
    #: Retention never removes the snapshot.
    pinned: bool = False
    cause: Cause = Cause.MANUAL
    variables: Variables | None = None
    #: The GPU memory is parked, and stays so.
    parked: bool = False
    #: The agent has switched off peer access between the GPUs of the kernel's own process (`engine/gpu/refusals.py`).
    peer_access_off: bool = False


class RetentionPolicy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which snapshots stay, as restic's `forget` has it: one that any keep rule holds of does (`store/retention.py`).

    The keep rules look at each kernel by itself; 0 is no rule, and where there is none all stay. Then, if the snapshots
    take more than `max_bytes` together (0: no limit), the oldest go until they do not. Applies to snapshots that were taken
    automatically, with `manual_too` to those taken by hand as well; never to pinned ones, nor to what a kernel needs.
    """

    keep_last: Annotated[int, msgspec.Meta(ge=0)] = 0
    #: Seconds before the latest snapshot of the kernel, whenever that was.
    keep_within_seconds: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    max_bytes: Annotated[int, msgspec.Meta(ge=0)] = 0
    manual_too: bool = False

    @property
    def removes_nothing(self) -> bool:
        """Whether it says nothing at all."""
        return not (self.keep_last or self.keep_within_seconds or self.max_bytes)


class SnapshotInfo(msgspec.Struct, frozen=True, gc=False):
    """What lists show of a snapshot.

    A store may have ten thousand of them in memory for good: Python's garbage collector, for which all threads wait, passes them by.
    """

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
    #: Retention never removes it.
    pinned: bool = False
    #: What its user calls it, and has to say of it. What was changed since lies beside the manifest (`store/annotation_files.py`).
    title: str = ""
    note: str = ""
    #: The biggest that the kernel had; empty where that is not known.
    variables: list[Variable] = []


class Manifest(msgspec.Struct, frozen=True):
    """A snapshot's table of contents. Written last: it exists completely or the snapshot does not exist."""

    info: SnapshotInfo
    launch: LaunchSpec
    host: Host
    #: skeleton: CRIU left the private pages to us. plain: CRIU wrote everything (the fall-back).
    method: str
    keeper_pid: int
    kernel_pid: int
    #: Highest number in use as pid or thread id: whatever runs in the namespace before the restore must stay above it.
    highest_pid: int
    processes: list[Process]
    images: list[ImageFile]
    streams: list[Stream]
    captured: list[CapturedFile] = []
    gpu: list[GpuProcess] = []
    mapped: list[MappedFile] = []
    #: Those of the tree with itself; what they have to deliver is in the stream `tcp`.
    connections: list[TcpConnection] = []
    #: The ids that the kernel was started with, as it sees them. Earlier versions saved kernels of root only.
    uid: int = 0
    gid: int = 0
    #: The names of those that could not be kept.
    lost_connections: list[str] = []
    seconds_by_stage: dict[str, float] = {}
    #: What the kernel's variables were; None where that is not known.
    variables: Variables | None = None

    def stream(self, name: str) -> Stream:
        """The stream of this name. Raises ObjectCorrupt."""
        for stream in self.streams:
            if stream.name == name:
                return stream
        raise ObjectCorrupt(
            f"Snapshot {self.info.snapshot_id} lacks its part {name}.",
            hint="It cannot be resumed; resume an older one.",
        )
