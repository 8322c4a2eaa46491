"""Finding out what an endpoint can do by doing it, when a remote is configured: what it says of itself is often wrong.

obstore cannot ask for Object Lock, life-cycle rules or the answers' headers. Versions show in the answer to a write; the clock is
the time that the endpoint gives to an object that was just written.
"""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import msgspec

from ...errors import (
    AccessDenied,
    ConfigurationError,
    FarObjectInvalid,
    FarObjectMissing,
    GpuCkptError,
)
from ...remote_records import Capabilities, Remote
from .buckets import Bucket

_FOLDER = "trial"
_RACERS = 4
_BYTES = 4096
#: Farther from the endpoint's clock requests are refused before long, by S3 from 15 minutes on.
_CLOCK_TOLERANCE_SECONDS = 60.0


def try_out(bucket: Bucket) -> Capabilities:
    """Return what the endpoint can do; some objects are written and deleted for it.

    Raises AccessDenied where it can neither be written nor read, StoreUnavailable, ConfigurationError.
    """
    folder = f"{_FOLDER}/{os.urandom(8).hex()}"
    trial = _Trial(bucket, folder)
    try:
        return trial.run()
    finally:
        with suppress(GpuCkptError):
            bucket.delete(trial.written)


class _Trial:
    def __init__(self, bucket: Bucket, folder: str) -> None:
        self._bucket, self._folder = bucket, folder
        self.written: list[str] = []

    def run(self) -> Capabilities:
        before = time.time()
        name, content = self._name("first"), os.urandom(_BYTES)
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

    def _name(self, of: str) -> str:
        name = f"{self._folder}/{of}"
        self.written.append(name)
        return name

    def _creates(self) -> bool:
        """Whether of several that create an object at once, and one that comes later, exactly one wins."""
        name = self._name("created")
        contents = [os.urandom(_BYTES) for _ in range(_RACERS)]
        try:
            with ThreadPoolExecutor(_RACERS) as pool:
                won = list(pool.map(lambda one: self._bucket.create(name, one), contents))
            if sum(won) != 1 or self._bucket.create(name, os.urandom(_BYTES)):
                return False
        except FarObjectInvalid:
            return False
        return self._bucket.get(name).data == contents[won.index(True)]

    def _swaps(self) -> bool:
        """Whether of several that replace the same writing exactly one wins, and the old one is no longer taken."""
        name = self._name("swapped")
        self._bucket.create(name, os.urandom(_BYTES))
        old = self._bucket.get(name).version
        contents = [os.urandom(_BYTES) for _ in range(_RACERS)]
        try:
            with ThreadPoolExecutor(_RACERS) as pool:
                won = list(pool.map(lambda one: self._bucket.swap(name, one, old), contents))
            if sum(won) != 1 or self._bucket.swap(name, os.urandom(_BYTES), old):
                return False
        except (ConfigurationError, FarObjectInvalid):
            return False
        return self._bucket.get(name).data == contents[won.index(True)]

    def _ranges(self, name: str, content: bytes) -> bool:
        try:
            return self._bucket.get_range(name, 1000, 1100) == content[1000:1100]
        except FarObjectInvalid:
            return False

    def _lists(self, name: str) -> bool:
        try:
            return name in {found.name for found in self._bucket.list(self._folder)}
        except AccessDenied:
            return False

    def _tells_missing(self) -> bool:
        try:
            self._bucket.get(f"{self._folder}/missing")
        except FarObjectMissing:
            return True
        except AccessDenied:
            pass
        return False

    def _deletes(self, name: str) -> bool:
        try:
            self._bucket.delete([name])
        except (AccessDenied, FarObjectInvalid):
            return False
        return self._bucket.head(name) is None


class Verdict(msgspec.Struct, frozen=True):
    """What follows from an endpoint's capabilities, in words. With `refusals` it cannot be used."""

    refusals: list[str]
    #: What is given up.
    warnings: list[str]


def verdict(found: Capabilities) -> Verdict:
    """Return what follows from what an endpoint can do."""
    needed = {
        "it overwrites objects although it was asked not to (If-None-Match)": found.create_only,
        "it does not give parts of objects as they were asked for (Range)": found.ranges,
        "objects that were just written are not listed, or may not be": found.lists,
        "it does not tell a missing object from a denied one (the right to list is needed)": found.tells_missing,
    }
    refusals = [what for what, works in needed.items() if not works]
    warnings = []
    if found.create_only and not found.compare_and_swap:
        warnings.append(
            "It cannot compare and swap (If-Match): only this machine may write to this remote."
        )
    if not found.deletes:
        warnings.append(
            "It does not let objects be deleted: what is no longer needed stays, and costs money."
        )
    if found.versioned:
        warnings.append(
            "It keeps old versions: what is overwritten or deleted goes on to cost money until a life-cycle rule removes"
            " noncurrent versions."
        )
    if abs(found.clock_ahead_seconds) > _CLOCK_TOLERANCE_SECONDS:
        warnings.append(
            f"Its clock and the one of this machine are {abs(found.clock_ahead_seconds):.0f} s apart: set the clock of this machine."
        )
    return Verdict(refusals, warnings)


def require_usable(remote: Remote) -> None:
    """Raise ConfigurationError where the endpoint of a remote lacks what nothing can replace, or was never tried."""
    found = remote.capabilities
    refusals = verdict(found).refusals if found else ["it was never tried out"]
    if refusals:
        raise ConfigurationError(
            f"Remote {remote.name} cannot be used: {'; '.join(refusals)}.",
            hint="Snapshots could be lost there. Use an endpoint that supports conditional writes, or a folder.",
        )
