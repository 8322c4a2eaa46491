"""Validation of manifests: consistency, and paths confined to the kernel's own mounts.

A manifest is untrusted: it may be imported, or another user may have put it on the disk. Every reader checks it here. Files that
a resume writes outside of the kernel's own mounts are also named in CRIU's images, with which `engine.placing` compares them.
"""

from __future__ import annotations

import ipaddress
import math
import posixpath
import re
import socket
import stat
from collections.abc import Iterator

from ..wire import folder_records
from ..wire.chunk_parts import PART_BYTES
from ..wire.ids import is_id
from ..wire.manifest_records import (
    LINK_REMAP,
    SCRATCH,
    CapturedFile,
    Chunk,
    Manifest,
    SnapshotInfo,
    Stream,
    TcpConnection,
)
from ..wire.snapshot_order import MAX_NUMBER
from .codecs import DIGEST_BYTES, MAX_CHUNK_BYTES

_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,254}")
#: The allowed files on the kernel's scratch: the keeper, its secrets, the number of the copy, and the libraries that are preloaded.
_SCRATCH = re.escape(SCRATCH)
_ON_SCRATCH = re.compile(rf"{_SCRATCH}/(keeper|secrets|copy|[a-z-]+\.so)")
_STAGING = re.compile(rf"{_SCRATCH}/gpu/{_FILE_NAME.pattern}")
#: Folders in which every machine has its own files. Reading some of these files never ends.
_SYSTEM = ("/proc/", "/sys/", "/dev/")
#: The digest of a whole file: BLAKE3 in hexadecimal.
_FILE_DIGEST = re.compile("[0-9a-f]{64}")
#: The most open files in a manifest, and the highest length of one.
MAX_OPEN_FILES, _MAX_LENGTH = 10_000, (1 << 63) - 1
_SHM = "/dev/shm/"  # noqa: S108 - the kernel's own, private one

#: The last second of the year 9999, the last that `datetime` supports.
LATEST = 253402300799.0
_MAX_PID = 1 << 22
_MAX_ID = (1 << 32) - 2
_MAX_TIME_NS = (1 << 63) - 1
_MAX_PORT = 65535
#: The numbers in an address after the host: port, and for IPv6 flow and scope.
_ADDRESS_NUMBERS = 3
_MAX_UNREAD_BYTES = 1 << 28
_MAX_FLAGS, _MAX_OPTION = (1 << 32) - 1, (1 << 31) - 1
_MAX_STREAM_BYTES = 1 << 60
#: The most bytes of all images together, except those with streams of their own.
_MAX_IMAGES_BYTES = 1 << 28


def problem_of_info(info: SnapshotInfo) -> str:
    """Return the problem of a snapshot's entry in lists; an empty string if there is none."""
    if not (is_id(info.snapshot_id) and is_id(info.kernel_id)):
        return "it contains an invalid id"
    if not is_time(info.created) or not all(
        math.isfinite(seconds) for seconds in (info.frozen_seconds, info.seconds)
    ):
        return "it contains an invalid time"
    if not 0 <= info.number <= MAX_NUMBER:
        return "it contains an invalid number"
    return ""


def is_time(seconds: float) -> bool:
    """Return whether these are seconds since the epoch that `datetime` supports."""
    return 0 <= seconds <= LATEST


def problem_of(manifest: Manifest) -> str:
    """Return the problem of a manifest; an empty string if there is none."""
    return next(_problems(manifest), "")


def is_link(record: CapturedFile) -> bool:
    """Return whether a captured file is one of CRIU's links, which are beside the user's files."""
    return posixpath.basename(record.path).startswith(LINK_REMAP)


def is_private(path: str, *, private_shm: bool) -> bool:
    """Return whether a path is in a file system that is private to the kernel."""
    return _on_scratch(path) or (private_shm and path.startswith(_SHM))


def is_plain(path: str) -> bool:
    """Return whether a path is absolute, without dots and empty names."""
    if not path.startswith("/") or "\0" in path:
        return False
    return not {"", ".", ".."}.intersection(path.split("/")[1:])


def _on_scratch(path: str) -> bool:
    return path == SCRATCH or path.startswith(f"{SCRATCH}/")


def _problems(manifest: Manifest) -> Iterator[str]:
    if not is_id(manifest.launch.kernel_id):
        yield "it contains an invalid kernel id"
    if any(not 0 <= port <= _MAX_PORT for port in manifest.launch.own_ports):
        yield "it contains an invalid port"
    pids = [manifest.keeper_pid, manifest.kernel_pid, *(one.pid for one in manifest.processes)]
    pids += [one.pid for one in manifest.gpu]
    if any(not 0 < pid <= _MAX_PID for pid in pids):
        yield "it contains an invalid process id"
    if not 0 <= manifest.uid <= _MAX_ID or not 0 <= manifest.gid <= _MAX_ID:
        yield "it contains an invalid user or group id"
    paths = [manifest.launch.cwd, *manifest.launch.own_sockets.names]
    paths += [one.path for one in manifest.mapped]
    if any("\0" in path for path in paths):
        yield "it contains an invalid path"
    streams = {stream.name: stream.length for stream in manifest.streams}
    if len(streams) < len(manifest.streams):
        yield "two of its streams have the same name"
    yield from (f"stream {one.name!r} is not sound" for one in manifest.streams if not _sound(one))
    yield from _problems_of_images(manifest, streams)
    yield from _problems_of_captured(manifest.captured, manifest.launch.private_shm, streams)
    yield from _problems_of_kept(manifest, streams)
    yield from _problems_of_open(manifest)
    yield from _problems_of_folder(manifest, streams)
    for path in (path for process in manifest.gpu for path in process.staging):
        if not _STAGING.fullmatch(path) or f"gpu{path}" not in streams:
            yield f"memory of a GPU would be written to {path!r}"
    kept = manifest.connections
    unread = sum(end.unread for connection in kept for end in connection.ends)
    sent = sum(connection.sent for connection in kept)
    is_whole = streams.get("tcp", 0) >= unread and streams.get("tcp-unaccepted", 0) >= sent
    if not is_whole or not all(map(_is_connection, kept)):
        yield "it contains an invalid connection"
    for process in manifest.processes:
        if process.pages not in {"", *streams} and manifest.method == "skeleton":
            yield f"the memory of process {process.pid} is missing"


def _sound(stream: Stream) -> bool:
    # One list for each check: GPU memory has 100,000 chunks, and one generator with all checks takes twice the time.
    lengths = [chunk.length for chunk in stream.chunks]
    stored = [chunk for chunk in stream.chunks if chunk.digest or chunk.parts]
    return (
        sum(lengths) == stream.length <= _MAX_STREAM_BYTES
        and min(lengths, default=1) > 0
        and {len(chunk.digest) for chunk in stored} <= {DIGEST_BYTES}
        and max([chunk.length for chunk in stored], default=0) <= MAX_CHUNK_BYTES
        and all(_is_composed(chunk) for chunk in stored if chunk.parts)
    )


def _is_composed(chunk: Chunk) -> bool:
    """Return whether the parts of a chunk add up to its length and lie within possible stored chunks."""
    if len(chunk.parts) % PART_BYTES:
        return False
    parts = list(chunk.stored())
    return sum(part.length for part in parts) == chunk.length and all(
        part.length > 0 and part.start + part.length <= MAX_CHUNK_BYTES for part in parts
    )


def _is_connection(connection: TcpConnection) -> bool:
    if not 0 <= connection.sent <= _MAX_UNREAD_BYTES * connection.waiting:
        return False
    return len(connection.ends) in ({1} if connection.waiting else {1, 2}) and all(
        end.family in {socket.AF_INET, socket.AF_INET6}
        and _is_address(end.local)
        and _is_address(end.remote)
        and 0 <= end.unread <= _MAX_UNREAD_BYTES
        and 0 <= end.flags <= _MAX_FLAGS
        and all(
            0 <= option.level <= _MAX_OPTION and 0 <= option.name <= _MAX_OPTION
            for option in end.options
        )
        for end in connection.ends
    )


def _is_address(parts: list[str | int]) -> bool:
    """Return whether this is an address of Python's sockets whose host is numeric, so that no name is resolved."""
    host, *numbers = parts or [0]
    if not isinstance(host, str) or not 1 <= len(numbers) <= _ADDRESS_NUMBERS:
        return False
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    port, *more = [number for number in numbers if isinstance(number, int)] or [-1]
    return 0 <= port <= _MAX_PORT and all(0 <= number <= _MAX_FLAGS for number in more)


def _problems_of_images(manifest: Manifest, streams: dict[str, int]) -> Iterator[str]:
    together = streams.get("images", 0)
    if together > _MAX_IMAGES_BYTES:
        yield "its images are longer than images can be"
    names = set()
    for image in manifest.images:
        if not _FILE_NAME.fullmatch(image.name) or image.name in names:
            yield f"an image would be written to {image.name!r}"
        names.add(image.name)
        start, end = image.offset, image.offset + image.length
        inside = not image.stream and 0 <= start <= end <= together
        if not inside and streams.get(image.stream) != image.length:
            yield f"image {image.name} is not in it"


def _problems_of_captured(
    files: list[CapturedFile], private_shm: bool, streams: dict[str, int]
) -> Iterator[str]:
    kinds: dict[str, str] = {}
    for record in files:
        path = record.path
        if not is_plain(path):
            yield f"{path!r} is not a valid path"
        elif path in kinds:
            yield f"{path} is in it twice"
        elif not _may_lie_there(record, private_shm):
            yield f"{path} is not one of the kernel's own files"
        elif not _may_be(record, kinds, streams):
            yield f"{path} is not a file that a kernel can have"
        kinds[path] = record.kind
    for path in kinds:
        if any(kinds.get(parent, "directory") != "directory" for parent in _parents(path)):
            yield f"{path} lies in something that is not a directory"


def _problems_of_kept(manifest: Manifest, streams: dict[str, int]) -> Iterator[str]:
    paths = {record.path for record in manifest.captured}
    for file in manifest.kept:
        if not is_plain(file.path) or file.path.startswith(_SYSTEM):
            yield f"{file.path!r} is not a valid path of a kept file"
        elif file.path in paths:
            yield f"{file.path} is in it twice"
        elif streams.get(file.stream) != file.length or not _FILE_DIGEST.fullmatch(file.digest):
            yield f"the content of {file.path} is not in it"
        elif file.mode & ~0o777:
            yield f"{file.path} is not a file that a kernel can have"
        paths.add(file.path)


def _problems_of_open(manifest: Manifest) -> Iterator[str]:
    paths = {file.path for file in manifest.open_files}
    if len(paths) < len(manifest.open_files) or len(paths) > MAX_OPEN_FILES:
        yield "its list of open files is not sound"
    for file in manifest.open_files:
        lengths = (file.length, file.mapped, file.read)
        # A resume examines and reads the files, and some of the system's never end.
        if not is_plain(file.path) or file.path.startswith(_SYSTEM):
            yield f"{file.path!r} is not a valid path of an open file"
        elif not all(0 <= length <= _MAX_LENGTH for length in lengths):
            yield f"{file.path} is not a file that a kernel can have"
        elif not re.fullmatch(f"|{_FILE_DIGEST.pattern}", file.digest):
            yield f"the digest of {file.path} is not valid"


def _problems_of_folder(manifest: Manifest, streams: dict[str, int]) -> Iterator[str]:
    """Yield what is wrong about the working folder; its table is checked when it is read (`snapshots.working_folder.stored_folders`)."""
    folder = manifest.folder
    if folder is None:
        return
    if not is_plain(folder.path) or folder.path != manifest.launch.cwd:
        yield f"{folder.path!r} is not the folder of the kernel"
    if streams.get(folder_records.CONTENT) != folder.bytes or folder_records.TABLE not in streams:
        yield "the files of the working folder are not in it"


def _may_lie_there(record: CapturedFile, private_shm: bool) -> bool:
    if _on_scratch(record.path):
        return record.kind == "file" and bool(_ON_SCRATCH.fullmatch(record.path))
    if record.path.startswith(_SHM) and private_shm:
        return True
    return is_link(record) and record.kind in {"file", "hardlink"}


def _may_be(record: CapturedFile, kinds: dict[str, str], streams: dict[str, int]) -> bool:
    """Return whether kind, mode, owner, time and content are those of a plain data file."""
    # setgid on a directory only passes its group to new files, so it is harmless.
    harmless = 0o1777 | (stat.S_ISGID if record.kind == "directory" else 0)
    fits = {
        "directory": True,
        "fifo": True,
        "file": record.stream in streams,
        "hardlink": kinds.get(record.target) == "file",
        "symlink": bool(record.target) and "\0" not in record.target,
    }
    return (
        fits.get(record.kind, False)
        and not record.mode & ~harmless
        and 0 <= record.uid <= _MAX_ID
        and 0 <= record.gid <= _MAX_ID
        and abs(record.mtime_ns) <= _MAX_TIME_NS
    )


def _parents(path: str) -> Iterator[str]:
    names = path.split("/")
    return ("/".join(names[:count]) for count in range(2, len(names)))
