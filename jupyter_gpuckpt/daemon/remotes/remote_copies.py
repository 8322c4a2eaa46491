"""The copies of this machine's own snapshots in remotes: verified before chunks are removed here, fetched when chunks are needed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from ...errors import (
    GpuCkptError,
    OperationCancelled,
    RemoteNotFound,
    RemoteObjectMissing,
    SnapshotExists,
    SnapshotNotFound,
    StoreError,
    error_from,
)
from ...remote.listed_facts import Amendment, Told, about, title_of, told
from ...remote.remote_list import Remotes, state_folder
from ...remote.remote_sessions import RemoteSnapshot
from ...remote.retries import Retries
from ...store.stub_files import Stub
from ...wire.manifest_records import SnapshotInfo
from ...wire.progress import Progress, Stage
from . import amending, remote_keys
from .change_sender import SentChanges
from .leases import LeaseFile
from .remote_keys import Opened

if TYPE_CHECKING:
    from ...store.local import LocalStore


def find(data_dir: Path, opened: Opened, info: SnapshotInfo) -> tuple[str, RemoteSnapshot]:
    """Return the id of the remote session that lists a snapshot, and its entry. Raises SnapshotNotFound, and what `Bucket` raises."""
    leases = LeaseFile(state_folder(data_dir, opened.remote.name))
    for session_id in leases.sessions_of(info):
        with suppress(RemoteObjectMissing):
            for one in opened.sessions.get(session_id).listed:
                if one.snapshot_id == info.snapshot_id:
                    return session_id, one
    raise _not_listed(opened, info)


def _not_listed(opened: Opened, info: SnapshotInfo) -> SnapshotNotFound:
    return SnapshotNotFound(
        f"Remote {opened.remote.name} does not list snapshot {info.snapshot_id}.",
        hint="It was deleted there, by a user or by a rule.",
    )


def rely_on(data_dir: Path, opened: Opened, info: SnapshotInfo, store: str) -> None:
    """Record in a remote that this machine will have the content of a snapshot nowhere else, so that no prune removes it there.

    `store`: the identity of the store that has the rest of the snapshot.

    Raises SnapshotNotFound if the remote does not list it any more, ConfigurationError if this machine may not write there.
    """
    opened.require_writable()
    session_id, _ = find(data_dir, opened, info)
    file, name = SentChanges(state_folder(data_dir, opened.remote.name)), info.snapshot_id
    before = file.all().get(name)
    # It is recorded here first: if this daemon is killed, the next one can withdraw it in the remote.
    known = before or Told(title=title_of(info))
    file.note({name: msgspec.structs.replace(known, relied_on_in=session_id, store=store)})
    now = told(info, session_id, store)
    change = Amendment(name, [session_id], before, now, about(info), info.title)
    done = amending.amend(data_dir, opened, [change])
    if done.error is not None:
        raise error_from(done.error)
    if name not in done.sessions:
        raise _not_listed(opened, info)
    file.note({name: change.now})


def require_whole(
    opened: Opened, found: RemoteSnapshot, store: LocalStore, info: SnapshotInfo
) -> None:
    """Check that a remote has all of a snapshot, which it lists as `found`. Raises the error of a fetch, as far as it can be foreseen."""
    from .. import late_modules  # noqa: PLC0415 - late: see there

    manifest = store.manifest(info.snapshot_id)
    late_modules.fetch.require_whole(opened.bucket, opened.key.seal, found, manifest)


def repair(
    data_dir: Path, store: LocalStore, info: SnapshotInfo, remote: str, stop: threading.Event
) -> None:
    """Fetch the chunks of a snapshot that are missing here or damaged. Raises what `fetch` raises, and OperationCancelled at `stop`."""
    from .. import late_modules  # noqa: PLC0415 - late: see there

    opened = remote_keys.opened(data_dir, Remotes(data_dir).get(remote), Retries(stop=stop))
    _, found = find(data_dir, opened, info)
    late_modules.fetch.repair(opened.bucket, opened.key.seal, found, store)


@contextmanager
def local_chunks(
    data_dir: Path, store: LocalStore, info: SnapshotInfo, progress: Progress
) -> Iterator[None]:
    """Ensure that the local store has a snapshot's chunks inside the block; fetch a stub's. After an error it is a stub again."""
    with store.stubs.keeping(info.snapshot_id):
        stub = store.stubs.find(info.snapshot_id)
        if stub is not None:
            with progress.stage(Stage.FETCH, info.sizes.stored_bytes):
                _bring_back(data_dir, store, info, stub, progress)
        yield


def _bring_back(
    data_dir: Path, store: LocalStore, info: SnapshotInfo, stub: Stub, progress: Progress
) -> None:
    from .. import late_modules  # noqa: PLC0415 - late: see there

    if late_modules.fetch.is_made_whole(store, info.snapshot_id):
        return
    retries = Retries.while_somebody_waits(progress.cancelled)
    try:
        opened, snapshot = _look(data_dir, info, stub, retries)
        bucket, seal, checkers = (
            opened.bucket,
            opened.key.seal,
            late_modules.check_client.checkers,
        )
        late_modules.fetch.fetch(bucket, seal, snapshot, store, progress.reach, checkers)
    except SnapshotExists:
        return  # another fetch was faster
    except OperationCancelled:
        with suppress(StoreError):
            store.sweep()
        raise
    except GpuCkptError as error:
        where = f"remote {stub.remote}" if stub.remote else "a remote"
        error.hint = (
            f"{error.hint} The content of the snapshot is only in {where}, from where it is fetched before it can be resumed;"
            " nothing was changed."
        ).lstrip()
        raise


def _look(
    data_dir: Path, info: SnapshotInfo, stub: Stub, retries: Retries
) -> tuple[Opened, RemoteSnapshot]:
    """Return the remote from which a stub can be fetched: the one that it names, else any other that has the snapshot."""
    remotes = Remotes(data_dir)
    try:
        opened = remote_keys.opened(data_dir, remotes.get(stub.remote), retries)
        return opened, find(data_dir, opened, info)[1]
    except (RemoteNotFound, SnapshotNotFound) as error:
        # The remote may have been added again under another name, and another remote under this name.
        for remote in remotes.all():
            if remote.name == stub.remote:
                continue
            with suppress(StoreError):
                opened = remote_keys.opened(data_dir, remote, retries)
                return opened, find(data_dir, opened, info)[1]
        if not stub.remote:
            raise RemoteNotFound(
                f"It is not known which remote has snapshot {info.snapshot_id}, because its file `{info.snapshot_id}.stub` is damaged;"
                " none of this machine's remotes lists it.",
                hint="Add the remote again that has it.",
            ) from error
        if isinstance(error, RemoteNotFound):
            error.hint = f"{error.hint} Add again the one that had it."
        raise
