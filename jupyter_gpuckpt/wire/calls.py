"""The requests to the daemon: a table of routes, each with the records of its request and of its reply.

Bodies and replies are records of `protocol.py` and of the `…_records.py` modules; nothing is sent here. A route that is called
returns a request to it: `send(calls.save(kernel_id))` sends one, `stream(calls.owner_events(owner))` reads one that is answered by
lines of JSON. The daemon answers these routes, and servers pass some of them on.
"""

from __future__ import annotations

import os
import re
from collections.abc import AsyncIterable, Iterable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Generic, TypeVar
from urllib.parse import quote

import msgspec

from ..errors import DaemonUnavailable, ErrorRecord, error_from
from . import (
    decoding,
    folder_records,
    protocol,
    reclaim_records,
    remote_listings,
    remote_records,
    snapshot_records,
)
from .manifest_records import LaunchSpec
from .protocol import SILENCE_SECONDS, Event, Kernel, Operation
from .restart_records import SetAsideRequest

#: The timeout in seconds of requests that only read.
ANSWER_SECONDS = 30.0
#: How long the daemon may take to answer that it is alive, which needs only its event loop.
ALIVE_SECONDS = 2.0
#: The timeouts of a launch, which makes namespaces and mounts, and of a kill, which waits for the operation that it cancels.
LAUNCH_SECONDS, KILL_SECONDS = 120.0, 300.0

#: The stand-in type for the bytes of an archive, in a request or a response.
ARCHIVE = bytes

_Reply = TypeVar("_Reply")


@dataclass(frozen=True)
class Call(Generic[_Reply]):
    """A request whose reply is a `_Reply`, or a stream of lines, each of which is one.

    `content` is sent instead of a record: of an AsyncIterable by `AsyncClient` only, of an Iterable by `Client` only. With
    `seconds` None the answer may take any time.
    """

    reply: type[_Reply]
    method: str
    path: str
    body: msgspec.Struct | None = None
    params: dict[str, Any] = field(default_factory=dict)
    seconds: float | None = ANSWER_SECONDS
    content: Iterable[bytes] | AsyncIterable[bytes] | None = None

    def parse(self, status: int, content: bytes) -> _Reply:
        """Decode the reply. Raises the daemon's error as its own class, DaemonUnavailable if it cannot be decoded."""
        try:
            if status >= HTTPStatus.BAD_REQUEST:
                raise error_from(decoding.from_json(content, ErrorRecord))
            return decoding.from_json(content or b"null", self.reply)
        except msgspec.DecodeError as error:
            raise DaemonUnavailable(
                f"The daemon's answer to {self.method} {self.path} is not understood (status {status}).",
                hint="It may be of another version. Suspend its kernels (jupyter gpuckpt suspend --all); then the daemon exits by itself.",
                details=str(error),
            ) from error


@dataclass(frozen=True)
class Route(Generic[_Reply]):
    """A route and its contract. A reply of None is no body; `query`: the names of its query arguments, with their descriptions.

    The path contains names of ids in braces. `seconds`: how long the answer may take; None: any time.
    """

    reply: type[_Reply]
    method: str
    path: str
    request: Any = None
    status: HTTPStatus = HTTPStatus.OK
    seconds: float | None = ANSWER_SECONDS
    query: Mapping[str, str] = field(default_factory=dict, hash=False)

    def __call__(self, *given: object, **named: object) -> Call[_Reply]:
        """Return a request with these ids, then the fields of its body, or the body itself, or query arguments."""
        fields: list[Any] = list(given)

        def segment(match: re.Match[str]) -> str:
            return _segment(str(named.pop(match[1]) if match[1] in named else fields.pop(0)))

        path, body, content = re.sub(r"{(\w+)}", segment, self.path), None, None
        if self.request is ARCHIVE:
            content, named = fields[0], {}
        elif self.request is not None:
            is_body = len(fields) == 1 and isinstance(fields[0], self.request)
            body = fields[0] if is_body else self.request(*fields, **named)
            named = {}
        else:
            named |= zip(self.query, fields, strict=False)
            if not named.keys() <= self.query.keys() or len(fields) > len(self.query):
                raise TypeError(f"{self.method} {self.path} has no such arguments: {given} {named}")
        params = {name: "1" if value is True else value for name, value in named.items() if value}
        return Call(self.reply, self.method, path, body, params, self.seconds, content)


class _OnVisibleGpus(Route[_Reply]):
    """A route whose requests name the GPUs that the caller's environment allows."""

    def __call__(self, *given: object, **named: object) -> Call[_Reply]:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        return super().__call__(*given, visible_gpus=visible, **named)


def _segment(text: str) -> str:
    """Return a text quoted so that it is one segment of a path."""
    quoted = quote(text, safe="")
    # A segment that consists of dots would be interpreted as a relative path.
    return quoted if quoted.strip(".") else quoted.replace(".", "%2E")


_NONE, _CREATED, _ACCEPTED = HTTPStatus.NO_CONTENT, HTTPStatus.CREATED, HTTPStatus.ACCEPTED
_KERNEL, _SNAPSHOT, _OWNER = (
    "/kernels/{kernel_id}",
    "/snapshots/{snapshot_id}",
    "/owners/{owner_id}",
)
_OPERATION, _IN_REMOTE = "/operations/{operation_id}", "/remotes/{remote}/snapshots/{snapshot_id}"

#: The daemon's identity, and whether kernels can run under the engine here.
handshake = Route(protocol.Handshake, "GET", "/handshake")
#: An answer at once: the daemon answers requests.
alive = Route(type(None), "GET", "/alive", status=_NONE, seconds=ALIVE_SECONDS)
#: A new report on this machine.
host = Route(protocol.HostReport, "GET", "/host")
#: The use of this machine's memory, and below each limit of the daemon's control groups.
memory = Route(list[protocol.MemoryUse], "GET", "/memory")
#: The start of a kernel for an owner whose connection is open.
launch = Route(Kernel, "POST", "/kernels", protocol.LaunchRequest, _CREATED, seconds=LAUNCH_SECONDS)
#: The start of a kernel for such an owner as a copy of the process in a snapshot. If that is impossible, nothing is left of it.
copy = Route(Kernel, "POST", "/copies", protocol.CopyRequest, _CREATED, seconds=KILL_SECONDS)
#: All kernels of this place, and one of them.
kernels = Route(list[Kernel], "GET", "/kernels")
kernel = Route(Kernel, "GET", _KERNEL)
#: The end of a kernel; its processes are gone when the reply comes. Its snapshots stay.
kill = Route(
    type(None),
    "DELETE",
    _KERNEL,
    None,
    _NONE,
    KILL_SECONDS,
    {"by_user": "1: a user ends it; its server removes it and does not start it again."},
)
#: The stop of a kernel's processes; it is killed after some seconds unless `undo_end` is called before.
end = Route(Kernel, "PUT", f"{_KERNEL}/end", protocol.EndRequest, seconds=KILL_SECONDS)
undo_end = Route(Kernel, "DELETE", f"{_KERNEL}/end")
#: The deletion of the periodic saves of a kernel that its user has shut down; of the newest it can be undone for a day.
delete_periodic = Route(type(None), "DELETE", f"{_KERNEL}/periodic_saves", None, _NONE)
#: The process of a kernel is kept, stopped, until it is saved, and the kernel is forgotten, so that a new one can be launched on its ports.
set_aside = Route(
    type(None), "PUT", f"{_KERNEL}/former", SetAsideRequest, _NONE, seconds=KILL_SECONDS
)
#: The process that was set aside runs on in place of the kernel of its id, which is killed.
undo_restart = Route(Kernel, "DELETE", f"{_KERNEL}/former", seconds=KILL_SECONDS)
#: A signal to a kernel's process group; during an operation it is delivered after it.
signal = Route(type(None), "POST", f"{_KERNEL}/signal", protocol.SignalRequest, _NONE)
#: The begin of a save, after which the kernel runs on, and of a suspend, after which its process ends.
save = Route(Operation, "POST", f"{_KERNEL}/save", protocol.SaveRequest, _ACCEPTED)
suspend = Route(Operation, "POST", f"{_KERNEL}/suspend", protocol.SaveRequest, _ACCEPTED)
#: The begin of a resume from a snapshot, by default the latest.
resume = _OnVisibleGpus(Operation, "POST", f"{_KERNEL}/resume", protocol.ResumeRequest, _ACCEPTED)
#: A new suspended kernel from a snapshot of another one; `resume` starts it beside that one.
branch = Route(Kernel, "POST", "/branches", protocol.BranchRequest, _CREATED)
#: The launch spec of a snapshot's kernel. It has environment and connection key, so never pass it on.
launch_spec = Route(LaunchSpec, "GET", f"{_SNAPSHOT}/launch", query={"store": ""})
#: The kernel's open files that have changed since a snapshot, and the obstacles to a resume here.
changes = Route(
    snapshot_records.Changes,
    "GET",
    f"{_SNAPSHOT}/changes",
    query={"files": "1: as if the files of the working folder in the snapshot were put back."},
    seconds=KILL_SECONDS,
)
#: The files of the working folder that differ between two moments.
compare_files = Route(
    folder_records.FolderComparison,
    "GET",
    "/files",
    query={
        "first": "A snapshot, or a kernel: its files now.",
        "second": "The same.",
    },
    seconds=KILL_SECONDS,
)
#: The begin of a move of a kernel's GPU memory into RAM; `resume` moves it back.
park = Route(Operation, "POST", f"{_KERNEL}/park", protocol.ParkRequest, _ACCEPTED)
#: The begin of the upload of a suspended kernel's snapshot to a remote, by default the only one, and of its session's release there.
move = Route(Operation, "POST", f"{_KERNEL}/move", remote_listings.MoveRequest, _ACCEPTED)
#: When a kernel changed for the first time after its last snapshot, in seconds since the epoch.
changed = Route(Kernel, "PUT", f"{_KERNEL}/changed", protocol.ChangedRequest)
#: A user has chosen where to save the notebook of a kernel whose session another machine has taken over.
forget_taken_over = Route(Kernel, "DELETE", f"{_KERNEL}/taken_over")
#: The GPU memory that a resume or unpark needs, and the free memory.
gpu_room = _OnVisibleGpus(
    protocol.GpuRoom, "GET", f"{_KERNEL}/gpu_room", query={"snapshot_id": "", "visible_gpus": ""}
)
#: A new name and Jupyter's description of a kernel; an empty name or None leaves that part unchanged.
set_jupyter = Route(Kernel, "PUT", f"{_KERNEL}/jupyter", protocol.SaveRequest)
#: An operation's record, the stream of its events until it is over, and a request to stop and undo its work.
operation = Route(Operation, "GET", _OPERATION)
operation_events = Route(Event, "GET", f"{_OPERATION}/events", seconds=SILENCE_SECONDS)
cancel = Route(Operation, "POST", f"{_OPERATION}/cancel")
#: Snapshots, newest first.
snapshots = Route(
    list[snapshot_records.Snapshot],
    "GET",
    "/snapshots",
    query={
        "kernel_id": "Only those of this kernel.",
        "path": "Only those of this notebook.",
        "deleted": "1: instead, those whose deletion can be undone.",
    },
)
#: The contents of a snapshot, without its environment and connection key.
manifest_summary = Route(dict[str, Any], "GET", _SNAPSHOT)
#: The variables of a snapshot's kernel.
snapshot_variables = Route(snapshot_records.SnapshotVariables, "GET", f"{_SNAPSHOT}/variables")
#: The notebook in a snapshot. It is not validated: the caller must do that.
snapshot_notebook = Route(snapshot_records.SnapshotNotebook, "GET", f"{_SNAPSHOT}/notebook")
#: The deletion of a snapshot, which `undelete` can undo for a while; SnapshotInUse if a suspended kernel needs it.
#: `here_only`: it is not sent to remotes, because no user requested it.
delete_snapshot = Route(
    type(None), "DELETE", _SNAPSHOT, None, _NONE, KILL_SECONDS, {"here_only": ""}
)
undelete = Route(snapshot_records.Snapshot, "POST", f"{_SNAPSHOT}/undelete")
#: New values of those of a snapshot's title, note and pin that are given.
annotate = Route(snapshot_records.Snapshot, "PATCH", _SNAPSHOT, snapshot_records.AnnotateRequest)
#: A comparison of all of a snapshot with its digests. Damage is part of the reply.
verify = Route(snapshot_records.Verification, "POST", f"{_SNAPSHOT}/verify", seconds=None)
#: The archive of a snapshot, as bytes.
export = Route(ARCHIVE, "GET", f"{_SNAPSHOT}/export", seconds=None)
#: The import of an archive's snapshots; after ArchiveInvalid or SnapshotExists the store is unchanged.
import_archive = Route(
    list[snapshot_records.Snapshot], "POST", "/snapshots/import", ARCHIVE, _CREATED, seconds=None
)
#: The remotes, without a request to any of them.
remotes = Route(list[remote_listings.RemoteState], "GET", "/remotes")
#: The test of a place for a remote, and a new remote. A new store is made only where none is.
try_remote = Route(
    remote_records.TriedRemote,
    "POST",
    "/remotes/test",
    remote_records.NewRemote,
    seconds=KILL_SECONDS,
)
add_remote = Route(
    remote_records.AddedRemote,
    "POST",
    "/remotes",
    remote_records.NewRemote,
    _CREATED,
    KILL_SECONDS,
)
#: A new line by which other machines join a remote.
join_line = Route(
    remote_records.AddedRemote, "POST", "/remotes/{remote}/line", seconds=KILL_SECONDS
)
#: The snapshots in a remote, by session.
remote_sessions = Route(
    remote_listings.RemoteListing, "GET", "/remotes/{remote}/sessions", seconds=KILL_SECONDS
)
#: The size of a fetch, and the obstacles to resuming the kernel here.
fetch_estimate = Route(
    remote_listings.FetchEstimate,
    "GET",
    _IN_REMOTE,
    query={"session_id": "The remote session that lists it; without it, all are searched."},
    seconds=KILL_SECONDS,
)
#: The begin of a fetch of a snapshot into the local store; the reply comes after it was found in the remote.
fetch = Route(
    Operation, "POST", f"{_IN_REMOTE}/fetch", remote_listings.FetchRequest, _ACCEPTED, KILL_SECONDS
)
#: The disk use of the snapshots. The first request reads all manifests.
store = Route(snapshot_records.StoreUsage, "GET", "/store", seconds=KILL_SECONDS)
#: The state of uploads to every remote.
uploads = Route(list[snapshot_records.RemoteUploads], "GET", "/uploads")
#: The upload of snapshots before all others; the list of snapshots shows its progress.
upload = Route(type(None), "POST", "/uploads", snapshot_records.UploadRequest, _ACCEPTED)
#: The removal of the snapshots that a policy does not keep, or with `dry_run` only their list.
prune = Route(
    snapshot_records.PruneReport,
    "POST",
    "/snapshots/prune",
    snapshot_records.PruneRequest,
    seconds=KILL_SECONDS,
)
#: The standing notices that this machine goes, and the kernels that are not safe yet; and a notice that it goes, or stays after all.
notices = Route(reclaim_records.NoticesReport, "GET", "/notices")
give_notice = Route(
    reclaim_records.NoticesReport, "POST", "/notices", reclaim_records.NoticeRequest
)
#: A claim of the kernels of ended servers that belong to this owner, and those that it could claim if their servers had ended.
claim = Route(list[protocol.SuspendedKernel], "POST", f"{_OWNER}/claim", protocol.ClaimRequest)
claimable = Route(list[Kernel], "GET", f"{_OWNER}/claim")
#: The copies of templates' kernels that this owner wants to have ready for starts of kernels, and no others.
ready = Route(type(None), "PUT", f"{_OWNER}/ready", protocol.ReadyRequest, _NONE)
#: The next server may claim this owner's kernels although its process may still run.
leave = Route(
    type(None),
    "DELETE",
    _OWNER,
    status=_NONE,
    query={"kernel_id": "Only this kernel; the owner may claim it again."},
)
#: The events of an owner's kernels while the connection is open.
owner_events = Route(Event, "POST", "/owners", protocol.Owner, seconds=SILENCE_SECONDS)
