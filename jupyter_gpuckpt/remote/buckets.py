"""Objects of a remote: conditional writes, reads of ranges, and the project's own errors. The only module that calls obstore.

Every object begins with a header that contains 32 random bytes; `HEADER_BYTES` include them. A writer whose request had an unknown
outcome (the response was lost, or says that an object exists already) reads the object's header back: if the header is its own, its
write succeeded. Comparing ETags is not enough: an ETag is often a hash of the content, so it is the same again after A, B, A.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import unquote, urlsplit

from ..errors import (
    AccessDenied,
    ConfigurationError,
    CredentialsRefused,
    RemoteObjectInvalid,
    RemoteObjectMissing,
    StoreUnavailable,
    ToolMissing,
)
from ..linux.file_locks import alone
from ..linux.shared_folders import locks_reach_all
from ..store.packs import sync_directory
from ..wire.plurals import counted
from ..wire.remote_records import Remote
from . import request_errors
from .credentials import AwsFile
from .objects import ListedObject, Stored, Version
from .retries import Retries

if TYPE_CHECKING:
    from obstore import ObjectMeta
    from obstore.store import ObjectStore

#: The length of every object's header. Each write has a different header.
HEADER_BYTES = 64
#: The most bytes of an object that is not a pack.
MAX_SMALL_OBJECT_BYTES = 256 << 20

#: The lock file of a folder, held during a compare-and-swap.
_LOCK = ".lock"
_CONNECT_SECONDS = 10
#: How long a response may send no byte. The time counts from the beginning of the request, before its content was sent.
SILENT_SECONDS = 20
_REQUEST_SECONDS = 900
#: Content longer than this takes long to send, so its response may take as long as the whole request.
_LONG_BYTES = 64 << 10
_MAX_LISTED_OBJECTS = 10_000_000

_Answer = TypeVar("_Answer")
_log = logging.getLogger(__name__)


def open_bucket(
    remote: Remote, *, retries: Retries | None = None, lock_dir: Path | None = None
) -> Bucket:
    """Return the bucket of a remote. Raises ConfigurationError, ToolMissing if obstore is not installed.

    `lock_dir`: the folder of this machine's locks between writers, for a remote that has no compare-and-swap. Writers to a `file:`
    remote lock a file in its folder instead, if file locks work for all hosts there.
    """
    capabilities = remote.capabilities
    swaps = capabilities is None or capabilities.compare_and_swap
    lock = None if swaps or lock_dir is None else lock_dir / f"{remote.name}.swap"
    root = Path(unquote(urlsplit(remote.url).path)) if remote.scheme == "file" else None
    if root is not None and swaps and (capabilities or locks_reach_all(root)):
        swaps, lock = False, root / _LOCK
    patient = None if root else _connect(remote, _REQUEST_SECONDS)
    return Bucket(
        _connect(remote, SILENT_SECONDS),
        remote.name,
        patient=patient,
        retries=retries or Retries(),
        swaps=swaps,
        deletes=capabilities is None or capabilities.deletes,
        lock=lock,
        root=root,
    )


class Bucket:
    """The objects below a remote's prefix. Thread-safe. `patient`: the same store with longer timeouts, for long content.

    Methods raise AccessDenied, StoreUnavailable if the remote stays unreachable, RemoteObjectInvalid for an object that is too long,
    ConfigurationError if the bucket does not exist, OperationCancelled.
    """

    def __init__(
        self,
        store: ObjectStore,
        name: str,
        *,
        retries: Retries,
        patient: ObjectStore | None = None,
        swaps: bool = True,
        deletes: bool = True,
        lock: Path | None = None,
        root: Path | None = None,
    ) -> None:
        self._store, self.name, self.retries = store, name, retries
        #: The bytes of all written objects, also of attempts that failed.
        self.sent_bytes, self._counting = 0, threading.Lock()
        #: Whether deletions succeeded when the endpoint was tested.
        self.deletes = deletes
        self._patient = patient or store
        self._swaps, self._lock, self._root = swaps, lock, root

    def get(self, name: str, *, max_bytes: int = MAX_SMALL_OBJECT_BYTES) -> Stored:
        """Return an object. Raises RemoteObjectMissing."""

        def get() -> Stored:
            result = self._store.get(name)
            meta = result.meta
            if meta["size"] > max_bytes:
                raise RemoteObjectInvalid(
                    f"{name} in remote {self.name} is longer than {max_bytes:,} bytes."
                )
            data = bytes(result.bytes())
            if len(data) != meta["size"]:
                raise StoreUnavailable(
                    f"The response for {name} from remote {self.name} was truncated."
                )
            return Stored(data, _version(meta), meta["last_modified"])

        return self._do(get, name)

    def get_range(self, name: str, start: int, end: int) -> memoryview:
        """Return the bytes from `start` up to `end` of an object, fewer if the object is shorter. Raises RemoteObjectMissing."""

        def get() -> memoryview:
            # A copy would hold the GIL.
            data = memoryview(self._store.get_range(name, start=start, end=end))
            if len(data) > end - start:
                raise RemoteObjectInvalid(
                    f"Remote {self.name} returned more bytes than the requested range."
                )
            return data

        return self._do(get, name)

    def head(self, name: str) -> ListedObject | None:
        """Return the entry of an object; None if it does not exist."""

        with suppress(RemoteObjectMissing):
            meta = self.retries.run(lambda: self._head(name))
            return ListedObject(name, meta["size"], meta["last_modified"])
        return None

    def overwrite(self, name: str, data: bytes) -> Version:
        """Write an object unconditionally; return its version. Only for testing an endpoint: another writer may do the same."""
        return self._do(lambda: _version(self._put(name, data, "overwrite")), name)

    def create(self, name: str, data: bytes | bytearray | memoryview) -> bool:
        """Write an object if it does not exist; return whether this write created it."""
        _require_header(name, data)

        def create() -> bool:
            try:
                return self._is_written(name, data, lambda: self._put(name, data, "create"))
            except RemoteObjectMissing as error:
                # In a folder another machine may collect the file before it is on the disk. The next attempt writes it again.
                raise request_errors.failed(self.name, name, "the file was deleted") from error

        return self.retries.run(create)

    def swap(self, name: str, data: bytes, old: Version) -> bool:
        """Replace the version `old` of an object; return whether the object now has this content.

        The result is also False if another writer replaced this content meanwhile. Then the caller applies its change to the newer
        content, so the change must be idempotent.
        """
        _require_header(name, data)

        def put() -> None:
            if not self._swaps and _version(self._head(name)) != old:
                raise _Lost
            self._put(name, data, dict(old) if self._swaps else "overwrite")

        def swap() -> bool:
            with alone(self._lock) if self._lock else nullcontext():
                try:
                    return self._is_written(name, data, put)
                except RemoteObjectMissing:
                    return self._is_ours(name, data)

        return self.retries.run(swap)

    def delete(self, names: Sequence[str]) -> list[str]:
        """Delete objects; log and return those that the remote refuses to delete. Missing objects are no error."""
        refused: list[str] = []
        why = ""
        for name in names:

            def delete(name: str = name) -> None:
                self._store.delete(name)

            try:
                self._do(delete, name)
            except RemoteObjectMissing:
                continue
            except CredentialsRefused:
                raise
            except (_Lost, AccessDenied, RemoteObjectInvalid) as error:
                refused.append(name)
                why = getattr(error, "details", "") or "the remote gave no reason"
        if refused:
            _log.warning(
                "Remote %s refused to delete %s (%s), for example %s: the credentials lack the right to delete, or a policy of"
                " the bucket forbids it for a while. The objects stay there and cost money.",
                *(self.name, counted(len(refused), "object"), why, refused[0]),
            )
        return refused

    def forget_lock(self) -> None:
        """Remove the lock file of a folder that has no objects left."""
        if self._root is not None:
            (self._root / _LOCK).unlink(missing_ok=True)

    def list(self, folder: str) -> list[ListedObject]:
        """Return the objects below a folder."""

        def every() -> list[ListedObject]:
            found: list[ListedObject] = []
            for page in self._store.list(folder):
                found += [
                    ListedObject(one["path"], one["size"], one["last_modified"]) for one in page
                ]
                if len(found) > _MAX_LISTED_OBJECTS:
                    raise RemoteObjectInvalid(
                        f"Remote {self.name} lists more than {_MAX_LISTED_OBJECTS:,} objects."
                    )
            return found

        return self._do(every, folder)

    def _put(self, name: str, data: bytes | bytearray | memoryview, mode: Any) -> Any:  # noqa: ANN401 - obstore's own
        # obstore ignores conditions in multipart uploads.
        with self._counting:
            self.sent_bytes += len(data)
        store = self._patient if len(data) > _LONG_BYTES else self._store
        done = store.put(name, data, mode=mode, use_multipart=False)
        if self._root is not None:
            _bring_to_disk(self._root, name)
        return done

    def _head(self, name: str) -> ObjectMeta:
        try:
            return self._once(lambda: self._store.head(name), name)
        except RemoteObjectInvalid as error:
            # A response to HEAD has no content that would give a reason. S3 refuses expired credentials like this.
            raise CredentialsRefused(
                f"Remote {self.name} refused the request whether {name} exists.",
                hint="The credentials may have expired; they are read again at the next attempt.",
                details=error.details,
            ) from error

    def _is_written(
        self, name: str, data: bytes | bytearray | memoryview, put: Callable[[], object]
    ) -> bool:
        """Write an object by `put`; return whether it has this content now."""
        try:
            self._once(put, name)
        except _Lost:
            return self._is_ours(name, data)
        except StoreUnavailable:
            # The write may have succeeded although its response was lost.
            if self._is_ours(name, data):
                return True
            raise
        return True

    def _is_ours(self, name: str, data: bytes | bytearray | memoryview) -> bool:
        """Return whether the object has the header and the length of `data`."""
        try:
            size = self._head(name)["size"]
            header = self._once(
                lambda: bytes(self._store.get_range(name, start=0, end=HEADER_BYTES)), name
            )
        except RemoteObjectMissing:
            return False
        return bool(size == len(data) and header == data[:HEADER_BYTES])

    def _do(self, work: Callable[[], _Answer], name: str) -> _Answer:
        return self.retries.run(lambda: self._once(work, name))

    def _once(self, work: Callable[[], _Answer], name: str) -> _Answer:
        import obstore.exceptions as theirs  # noqa: PLC0415 - optional

        try:
            return work()
        except (theirs.AlreadyExistsError, theirs.PreconditionError) as error:
            raise _Lost from error
        except FileNotFoundError as error:
            if "NoSuchBucket" in str(error) or "ContainerNotFound" in str(error):
                raise ConfigurationError(
                    f"The bucket of remote {self.name} does not exist.",
                    hint="Make it with the provider's own tools, or correct the URL.",
                ) from error
            raise RemoteObjectMissing(f"{name} is not in remote {self.name}.") from error
        except (theirs.PermissionDeniedError, theirs.UnauthenticatedError) as error:
            raise request_errors.denied(self.name, name, str(error)) from error
        except NotImplementedError as error:
            raise ConfigurationError(
                f"Remote {self.name} does not support this operation."
            ) from error
        except (theirs.BaseError, OSError, TimeoutError) as error:
            raise request_errors.failed(self.name, name, str(error)) from error


class _Lost(Exception):  # noqa: N818 - an event
    """The condition of a write was false, possibly because an earlier attempt of the same write succeeded."""


def _version(meta: Mapping[str, Any]) -> Version:
    # obstore rejects the value None.
    return {key: meta[key] for key in ("e_tag", "version") if meta.get(key) is not None}


def _require_header(name: str, data: bytes | bytearray | memoryview) -> None:
    if len(data) < HEADER_BYTES:
        raise ValueError(f"{name} has no header that distinguishes its versions")


def _bring_to_disk(root: Path, name: str) -> None:
    """Flush a file below `root` and its directories to the disk, so that it survives a power failure."""
    path = root / name
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    while path != root:
        path = path.parent
        sync_directory(path)


def _connect(remote: Remote, silent_seconds: int) -> ObjectStore:
    """Return obstore's object for a remote, without any request."""
    try:
        from obstore.exceptions import BaseError  # noqa: PLC0415 - optional
        from obstore.store import from_url  # noqa: PLC0415
    except ImportError as error:
        raise ToolMissing(
            "Remotes need the Python package obstore.",
            hint="Install it: pip install 'jupyter-gpuckpt[remote]'",
        ) from error
    remote.check()
    scheme, settings = remote.scheme, dict(remote.settings)
    connect: Callable[..., ObjectStore] = from_url
    options: dict[str, Any] = {}
    if scheme == "file":
        options["mkdir"] = True
    else:
        endpoint = settings.get("endpoint", "https")
        options["client_options"] = {
            "allow_http": endpoint.startswith("http://"),
            "connect_timeout": timedelta(seconds=_CONNECT_SECONDS),
            "read_timeout": timedelta(seconds=silent_seconds),
            "timeout": timedelta(seconds=_REQUEST_SECONDS),
        }
        # Only this project repeats requests: in a repetition by obstore a lost response would look like a lost race.
        options["retry_config"] = {"max_retries": 0}
    settings.pop("allow_http", None)
    if scheme == "s3" and (file := AwsFile.find(settings.pop("profile", ""))):
        options["credential_provider"] = file
    try:
        return connect(remote.url, **options, **settings)
    except (BaseError, ValueError, OSError) as error:
        raise ConfigurationError(
            f"Remote {remote.name} cannot be opened.", hint="Check its URL and settings."
        ) from error
