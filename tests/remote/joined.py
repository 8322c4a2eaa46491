"""Machines that are set up with a remote as `jupyter gpuckpt remote add` does it, and snapshots that are uploaded to it."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from jupyter_gpuckpt.daemon.remotes import remote_keys
from jupyter_gpuckpt.remote.pack_refs import PACK_BYTES
from jupyter_gpuckpt.remote.remote_sessions import Facts
from jupyter_gpuckpt.remote.upload import Uploaded, Uploader
from jupyter_gpuckpt.snapshots.imports import import_archive
from jupyter_gpuckpt.store.local import LocalStore
from jupyter_gpuckpt.wire.remote_records import (
    GivenSecret,
    Remote,
    RemoteVerb,
)
from tests.remote.installations import ask


class Joined(NamedTuple):
    """A machine with a remote. `line` lets the next one in."""

    data_dir: Path
    remote: Remote
    line: str

    def upload(
        self,
        store: LocalStore,
        snapshot_id: str,
        pack_bytes: int = PACK_BYTES,
        **facts: str,
    ) -> Uploaded:
        """Upload a snapshot, listed in the remote session that is called as its kernel."""
        opened = remote_keys.opened(self.data_dir, self.remote)
        uploader = Uploader(
            opened.bucket,
            opened.key,
            opened.seen,
            state=self.data_dir / "state-of-uploads",
            machine_id=remote_keys.machine_id(self.data_dir),
            pack_bytes=pack_bytes,
        )
        kernel_id = store.manifest(snapshot_id).info.kernel_id
        return uploader.upload(store, snapshot_id, Facts(kernel_id, **facts))

    def upload_archive(self, archive: Path, folder: Path, **facts: str) -> str:
        """Upload the snapshot of an archive, by a store of its own in `folder`; its id."""
        with LocalStore(folder) as store, archive.open("rb") as file:
            [info] = import_archive(store, file.read)
            self.upload(store, info.snapshot_id, **facts)
        return info.snapshot_id


def join(data_dir: Path, remote: Remote, line: str = "") -> Joined:
    """Create a remote on a machine, or add it by the line of another machine."""
    new = Remote(remote.name, remote.url, remote.settings)
    if line:
        found = ask(RemoteVerb.ADD, data_dir, remote.name, new, GivenSecret(line))
    else:
        found = ask(RemoteVerb.CREATE, data_dir, remote.name, new)
    return Joined(data_dir, found.remotes[0].remote, found.line or line)
