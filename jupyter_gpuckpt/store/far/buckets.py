"""Objects of a remote: conditional writes, reads of ranges, and errors of ours. The only module that talks to obstore.

Every object of ours begins with a header that holds 32 random bytes (`HEADER_BYTES` cover them). So a writer that does not know
what became of its request, because the answer was lost or says that somebody was there before, reads the object back: its own
header means that it won. Comparing ETags would not do: they are often a hash of the content, and A, B, A would pass.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from urllib.parse import unquote, urlsplit

from ...errors import (
    AccessDenied,
    ConfigurationError,
    FarObjectInvalid,
    FarObjectMissing,
    StoreError,
    StoreFull,
    StoreUnavailable,
    ToolMissing,
)
from ...remote_records import Remote
from ..packs import sync_directory
from .credentials import AwsFile
from .file_locks import alone
from .retries import Retries

if TYPE_CHECKING:
    from obstore.store import ObjectStore

#: Of the beginning of every object: no two writings have the same.
HEADER_BYTES = 64
#: What is not a pack is never longer.
MOST_SMALL_BYTES = 256 << 20

_CONNECT_SECONDS = 10
#: Without a single byte.
_SILENT_SECONDS = 60
_REQUEST_SECONDS = 900
_MOST_LISTED = 10_000_000

_STATUS = re.compile(r"status(?: code:)? (\d{3})\b")
_CODE = re.compile(r"<Code>(\w{1,64})</Code>")
#: As Rust writes ENOSPC.
_NO_SPACE = "os error 28"
#: As obstore says that an answer is the whole object.
_NO_RANGE = "non-partial response"
#: As stores without HTTP say 416.
_OUTSIDE = re.compile(r"[Ii]nvalid range|range was invalid")
_TRY_AGAIN = frozenset({408, 409, 425, 429})
_NO_ACCESS = frozenset({401, 403})
_CLOCK_CODES = frozenset({"RequestTimeTooSkewed", "AuthenticationFailed"})

_Answer = TypeVar("_Answer")
#: What tells obstore which writing of an object is meant.
Version = Mapping[str, str]


class Found(NamedTuple):
    """An object as lists show it. `modified`: by the remote's clock."""

    name: str
    size: int
    modified: datetime


class Stored(NamedTuple):
    """An object's content, and which writing of it this is."""

    data: bytes
    version: Version
    modified: datetime


def open_bucket(
    remote: Remote, *, retries: Retries | None = None, lock_dir: Path | None = None
) -> Bucket:
    """Return the bucket of a remote. Raises ConfigurationError, ToolMissing where obstore is not installed.

    `lock_dir`: where writers of this machine exclude each other, for a remote that cannot compare and swap.
    """
    capabilities = remote.capabilities
    swaps = capabilities is None or capabilities.compare_and_swap
    lock = None if swaps or lock_dir is None else lock_dir / f"{remote.name}.swap"
    root = Path(unquote(urlsplit(remote.url).path)) if remote.scheme == "file" else None
    return Bucket(
        _connect(remote),
        remote.name,
        retries=retries or Retries(),
        swaps=swaps,
        lock=lock,
        root=root,
    )


class Bucket:
    """The objects below a remote's prefix. Thread-safe.

    Methods raise AccessDenied, StoreUnavailable when it stays out of reach, FarObjectInvalid for what is longer than can be,
    ConfigurationError when the bucket is missing, OperationCancelled.
    """

    def __init__(
        self,
        store: ObjectStore,
        name: str,
        *,
        retries: Retries,
        swaps: bool = True,
        lock: Path | None = None,
        root: Path | None = None,
    ) -> None:
        self._store, self.name, self.retries = store, name, retries
        self._swaps, self._lock, self._root = swaps, lock, root

    def get(self, name: str, *, most_bytes: int = MOST_SMALL_BYTES) -> Stored:
        """Return an object. Raises FarObjectMissing."""

        def get() -> Stored:
            result = self._store.get(name)
            meta = result.meta
            if meta["size"] > most_bytes:
                raise FarObjectInvalid(f"{name} in remote {self.name} is longer than it can be.")
            data = bytes(result.bytes())
            if len(data) != meta["size"]:
                raise StoreUnavailable(f"{name} in remote {self.name} came truncated.")
            return Stored(data, _version(meta), meta["last_modified"])

        return self._do(get, name)

    def get_range(self, name: str, start: int, end: int) -> bytes:
        """Return the bytes from `start` up to `end` of an object, fewer if it ends before. Raises FarObjectMissing."""

        def get() -> bytes:
            data = bytes(self._store.get_range(name, start=start, end=end))
            if len(data) > end - start:
                raise FarObjectInvalid(f"Remote {self.name} does not keep to ranges.")
            return data

        return self._do(get, name)

    def head(self, name: str) -> Found | None:
        """Return what is known of an object; None if it is not there."""

        def head() -> Found:
            meta = self._store.head(name)
            return Found(name, meta["size"], meta["last_modified"])

        with suppress(FarObjectMissing):
            return self._do(head, name)
        return None

    def overwrite(self, name: str, data: bytes) -> Version:
        """Write an object, whatever is there; which writing it is. For trials: nothing keeps others from doing the same."""
        return self._do(lambda: _version(self._put(name, data, "overwrite")), name)

    def create(self, name: str, data: bytes | bytearray | memoryview) -> bool:
        """Write an object that was not there; whether what is there now is this."""
        _require_header(name, data)

        def create() -> bool:
            try:
                self._once(lambda: self._put(name, data, "create"), name)
            except _Lost:
                return self._is_ours(name, data)
            except StoreUnavailable:
                # It may have arrived nevertheless.
                if self._is_ours(name, data):
                    return True
                raise
            return True

        return self.retries.run(create)

    def swap(self, name: str, data: bytes, old: Version) -> bool:
        """Replace the writing `old` of an object; whether what is there now is this.

        False also when somebody replaced ours meanwhile: what callers do on top of the newer content must bear being done twice.
        """
        _require_header(name, data)

        def swap() -> bool:
            with alone(self._lock) if self._lock else nullcontext():
                try:
                    if self._swaps:
                        self._once(lambda: self._put(name, data, dict(old)), name)
                    elif self._once(lambda: _version(self._store.head(name)), name) == old:
                        self._once(lambda: self._put(name, data, "overwrite"), name)
                    else:
                        raise _Lost
                except (_Lost, FarObjectMissing):
                    return self._is_ours(name, data)
                except StoreUnavailable:
                    if self._is_ours(name, data):
                        return True
                    raise
            return True

        return self.retries.run(swap)

    def delete(self, names: Sequence[str]) -> None:
        """Delete objects; those that are gone already are no error."""
        for name in names:

            def delete(name: str = name) -> None:
                self._store.delete(name)

            try:
                self._do(delete, name)
            except FarObjectMissing:
                continue
            except _Lost as error:
                raise FarObjectInvalid(
                    f"Remote {self.name} does not let {name} be deleted.",
                    hint="A policy of the bucket may forbid that for a while.",
                ) from error

    def list(self, folder: str) -> list[Found]:
        """Return the objects below a folder."""

        def every() -> list[Found]:
            found: list[Found] = []
            for page in self._store.list(folder):
                found += [Found(one["path"], one["size"], one["last_modified"]) for one in page]
                if len(found) > _MOST_LISTED:
                    raise FarObjectInvalid(f"Remote {self.name} lists too many objects.")
            return found

        return self._do(every, folder)

    def _put(self, name: str, data: bytes | bytearray | memoryview, mode: Any) -> Any:  # noqa: ANN401 - obstore's own
        # Several parts cannot be had together with conditions.
        done = self._store.put(name, data, mode=mode, use_multipart=False)
        if self._root is not None:
            _bring_to_disk(self._root, name)
        return done

    def _is_ours(self, name: str, data: bytes | bytearray | memoryview) -> bool:
        """Whether this is what the object holds."""
        try:
            size = self._once(lambda: self._store.head(name), name)["size"]
            header = self._once(
                lambda: bytes(self._store.get_range(name, start=0, end=HEADER_BYTES)), name
            )
        except FarObjectMissing:
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
            raise FarObjectMissing(f"{name} is not in remote {self.name}.") from error
        except (theirs.PermissionDeniedError, theirs.UnauthenticatedError) as error:
            raise self._denied(name, str(error)) from error
        except NotImplementedError as error:
            raise ConfigurationError(f"Remote {self.name} cannot do this.") from error
        except (theirs.BaseError, OSError, TimeoutError) as error:
            raise self._failed(name, str(error)) from error

    def _denied(self, name: str, said: str) -> AccessDenied:
        hint = "Check the credentials and their rights: put, get, list and delete below the prefix."
        code = _CODE.search(said)
        if code and code[1] in _CLOCK_CODES:
            hint += " A clock that is wrong by minutes is refused like this, too."
        return AccessDenied(
            f"Remote {self.name} denies access to {name}.",
            hint=hint,
            details=code[1] if code else "",
        )

    def _failed(self, name: str, said: str) -> StoreError:
        # Nothing of the text is repeated but status and code: its URL may hold a token.
        status, code = _STATUS.search(said), _CODE.search(said)
        number = int(status[1]) if status else 0
        if number in _NO_ACCESS:
            return self._denied(name, said)
        details = " ".join([f"status {number}"] * bool(number) + ([code[1]] if code else []))
        if _NO_RANGE in said:
            return FarObjectInvalid(f"Remote {self.name} does not keep to ranges.")
        if _OUTSIDE.search(said):
            return FarObjectInvalid(f"{name} in remote {self.name} is shorter than it should be.")
        if _NO_SPACE in said:
            return StoreFull(f"The disk of remote {self.name} is full.")
        if 400 <= number < 500 and number not in _TRY_AGAIN:
            return FarObjectInvalid(
                f"Remote {self.name} refuses the request for {name}.", details=details
            )
        return StoreUnavailable(
            f"Remote {self.name} cannot be reached, or failed at {name}.",
            hint="Check the network and the URL of the remote; what was uploaded is kept.",
            details=details or said.partition("\n")[0].rpartition(" - ")[2][:200],
        )


class _Lost(Exception):  # noqa: N818 - an event
    """The condition of a write did not hold, or an earlier attempt of the same write made it not hold."""


def _version(meta: Mapping[str, Any]) -> Version:
    # obstore refuses None.
    return {key: meta[key] for key in ("e_tag", "version") if meta.get(key) is not None}


def _require_header(name: str, data: bytes | bytearray | memoryview) -> None:
    if len(data) < HEADER_BYTES:
        raise ValueError(f"{name} has no header that tells its writings apart")


def _bring_to_disk(root: Path, name: str) -> None:
    """Have a file below `root` outlast a power cut, its name included."""
    path = root / name
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    while path != root:
        path = path.parent
        sync_directory(path)


def _connect(remote: Remote) -> ObjectStore:
    """Return obstore's object for a remote; nothing is asked yet."""
    try:
        from obstore.exceptions import BaseError  # noqa: PLC0415 - optional
        from obstore.store import from_url  # noqa: PLC0415
    except ImportError as error:
        raise ToolMissing(
            "Remotes need the Python package obstore.",
            hint="Install it: pip install 'jupyter_gpuckpt[far]'",
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
            "read_timeout": timedelta(seconds=_SILENT_SECONDS),
            "timeout": timedelta(seconds=_REQUEST_SECONDS),
        }
        # Requests are made again by us alone, or a lost answer would look like a lost race.
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
