"""The check whether a remote has the only copies of snapshots, made before it or its content is removed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from ...errors import ConfigurationError, GpuCkptError, StoreUnavailable
from ...linux.file_locks import alone, eviction
from ...wire import calls, daemon_settings, ids
from ...wire.snapshot_records import Snapshot, UploadState
from .. import printing
from ..daemon_calls import daemon


@contextmanager
def kept(
    remote: str, session: str = "", *, force: bool, hint: str, forced: str = ""
) -> Iterator[None]:
    """Raise ConfigurationError with `hint` if the remote has the only copies of snapshots, of all or of one remote session.

    Inside the block the daemon evicts no local copy to this remote. With `force` a warning that ends in `forced` is printed
    instead. Raises StoreUnavailable.
    """
    with _no_evictions(remote):
        if only := _only_in(remote, session, force=force):
            text = f"Remote {remote} has the only copies of these snapshots: {', '.join(only)}."
            if not force:
                raise ConfigurationError(text, hint=hint)
            printing.warn(f"{text}{forced}")
        yield


@contextmanager
def _no_evictions(remote: str) -> Iterator[None]:
    data_dir = daemon_settings.from_environment().data
    with ExitStack() as stack:
        if ids.is_id(remote):  # a remote cannot have another name
            try:
                stack.enter_context(alone(eviction(data_dir, remote)))
            except OSError as error:
                raise StoreUnavailable(
                    f"Nothing can be written in {data_dir}: {error.strerror}.",
                    hint="Repair the folder, then repeat the command.",
                ) from error
        yield


def _only_in(remote: str, session: str, *, force: bool) -> list[str]:
    """Return the snapshots whose content only this remote has; with `force` none if the daemon cannot be asked."""
    if not daemon_settings.from_environment().state.exists():
        return []  # there never was a daemon
    try:
        with daemon(waits=True) as client:
            found = client.send(calls.snapshots())
    except GpuCkptError:
        if force:
            return []
        raise
    # A remote session has its kernel's id.
    wanted = [info for info in found if session in {"", info.kernel_id}]
    return [info.snapshot_id for info in wanted if _is_only_in(remote, info)]


def _is_only_in(remote: str, info: Snapshot) -> bool:
    others = [one for one in info.uploads if one.state is UploadState.UPLOADED]
    return info.remote_only in {remote, ""} and not any(one.remote != remote for one in others)
