"""The test of an endpoint's capabilities when a remote is configured. Each capability is tried: documentation is often wrong.

obstore cannot query Object Lock, life-cycle rules or response headers. Versioning shows in the response to a write; the endpoint's
clock is the modification time of an object that was just written.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress

import msgspec

from ..errors import (
    AccessDenied,
    ConfigurationError,
    GpuCkptError,
    RemoteObjectInvalid,
    RemoteObjectMissing,
)
from ..wire.remote_records import Capabilities, Remote
from .buckets import Bucket

_FOLDER = "trial"
_RACERS = 4
_BYTES = 4096
#: The largest difference of clocks without a warning. S3 refuses requests if the clocks differ by more than 15 minutes.
_CLOCK_TOLERANCE_SECONDS = 60.0


def try_out(bucket: Bucket) -> Capabilities:
    """Test an endpoint with temporary objects; return its capabilities.

    Raises AccessDenied if objects can be neither written nor read, StoreUnavailable, ConfigurationError.
    """
    with _trial(bucket) as trial:
        return trial.run()


def time_there(bucket: Bucket) -> float:
    """Return the time by the remote's clock (seconds since the epoch), from an object that is written for that and removed again.

    Raises AccessDenied, StoreUnavailable.
    """
    with _trial(bucket) as trial:
        name = trial.name("time")
        bucket.overwrite(name, os.urandom(_BYTES))
        return bucket.get(name).modified.timestamp()


@contextmanager
def _trial(bucket: Bucket) -> Iterator[_Trial]:
    """Remove the objects of a trial after the block."""
    trial = _Trial(bucket)
    try:
        yield trial
    finally:
        with suppress(GpuCkptError):
            bucket.delete(trial.written)


class _Trial:
    def __init__(self, bucket: Bucket) -> None:
        self._bucket, self._folder = bucket, f"{_FOLDER}/{os.urandom(8).hex()}"
        self.written: list[str] = []

    def run(self) -> Capabilities:
        before = time.time()
        name, content = self.name("first"), os.urandom(_BYTES)
        written = self._bucket.overwrite(name, content)
        stored = self._bucket.get(name)
        ahead = stored.modified.timestamp() - (before + time.time()) / 2
        creates = self._creates()
        return Capabilities(
            create_only=creates,
            compare_and_swap=creates and self._swaps(),
            ranges=self._ranges(name, content),
            lists=self._lists(name),
            tells_missing=self._tells_missing(),
            deletes=self._deletes(name),
            versioned="version" in written,
            clock_ahead_seconds=round(ahead, 1),
            tried_at=time.time(),
        )

    def name(self, of: str) -> str:
        """Return the name of a new object, which is removed in the end."""
        name = f"{self._folder}/{of}"
        self.written.append(name)
        return name

    def _creates(self) -> bool:
        """Return whether exactly one of several simultaneous creations and one later creation succeeds."""
        name = self.name("created")
        contents = [os.urandom(_BYTES) for _ in range(_RACERS)]
        try:
            with ThreadPoolExecutor(_RACERS) as pool:
                won = list(pool.map(lambda one: self._bucket.create(name, one), contents))
            if sum(won) != 1 or self._bucket.create(name, os.urandom(_BYTES)):
                return False
        except RemoteObjectInvalid:
            return False
        return self._bucket.get(name).data == contents[won.index(True)]

    def _swaps(self) -> bool:
        """Return whether exactly one of several simultaneous swaps of one version succeeds, and a later swap of it fails."""
        name = self.name("swapped")
        self._bucket.create(name, os.urandom(_BYTES))
        old = self._bucket.get(name).version
        contents = [os.urandom(_BYTES) for _ in range(_RACERS)]
        try:
            with ThreadPoolExecutor(_RACERS) as pool:
                won = list(pool.map(lambda one: self._bucket.swap(name, one, old), contents))
            if sum(won) != 1 or self._bucket.swap(name, os.urandom(_BYTES), old):
                return False
        except (ConfigurationError, RemoteObjectInvalid):
            return False
        return self._bucket.get(name).data == contents[won.index(True)]

    def _ranges(self, name: str, content: bytes) -> bool:
        try:
            return self._bucket.get_range(name, 1000, 1100) == content[1000:1100]
        except RemoteObjectInvalid:
            return False

    def _lists(self, name: str) -> bool:
        try:
            return name in {found.name for found in self._bucket.list(self._folder)}
        except AccessDenied:
            return False

    def _tells_missing(self) -> bool:
        try:
            self._bucket.get(f"{self._folder}/missing")
        except RemoteObjectMissing:
            return True
        except AccessDenied:
            pass
        return False

    def _deletes(self, name: str) -> bool:
        return not self._bucket.delete([name]) and self._bucket.head(name) is None


class Verdict(msgspec.Struct, frozen=True):
    """The consequences of an endpoint's capabilities, as texts for users. An endpoint with `refusals` cannot be used."""

    refusals: list[str]
    #: Restrictions of an endpoint that can be used.
    warnings: list[str]


def verdict(found: Capabilities) -> Verdict:
    """Return the consequences of an endpoint's capabilities."""
    needed = {
        "it ignores the condition not to overwrite an object (If-None-Match)": found.create_only,
        "it does not support range requests (Range)": found.ranges,
        "its lists lack objects that were just written, or listing is denied": found.lists,
        "it gives the same error for missing and for denied objects (grant the right to list)": found.tells_missing,
    }
    refusals = [what for what, works in needed.items() if not works]
    warnings = []
    if found.create_only and not found.compare_and_swap:
        warnings.append(
            "It has no compare-and-swap (If-Match, or file locks that work across hosts): only this machine may write to this remote,"
            " and other machines cannot see which sessions run here."
        )
    if not found.deletes:
        warnings.append(
            "It refuses to delete objects: objects that are no longer needed stay there and cost money."
        )
    if found.versioned:
        warnings.append(
            "It keeps old versions: overwritten and deleted objects cost money until a life-cycle rule removes noncurrent versions."
        )
    if abs(found.clock_ahead_seconds) > _CLOCK_TOLERANCE_SECONDS:
        warnings.append(
            f"Its clock and the one of this machine are {abs(found.clock_ahead_seconds):.0f} s apart: set the clock of this machine."
        )
    return Verdict(refusals, warnings)


def require_usable(remote: Remote) -> None:
    """Raise ConfigurationError if the endpoint of a remote lacks a required capability or was never tested."""
    found = remote.capabilities
    refusals = verdict(found).refusals if found else ["it was never tested"]
    if refusals:
        raise ConfigurationError(
            f"Remote {remote.name} cannot be used: {'; '.join(refusals)}.",
            hint="Snapshots could be lost there. Use an endpoint that supports conditional writes and range requests, or a folder.",
        )
