"""The settings that a daemon gets at its start, as plain values.

`daemon_traits.py` makes them from traits, this module from the environment.
"""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from ..errors import ConfigurationError
from ..linux.control_groups import processors
from . import decoding

DEFAULT_IDLE_EXIT_SECONDS = 60.0
DEFAULT_UNDO_DELETE_SECONDS = 60.0
DEFAULT_COLLECT_REMOTE_EVERY_SECONDS = 7 * 24 * 3600.0
#: The variable with an administrator's retention rules for snapshots. The rules have the names of the traits.
RETENTION_VARIABLE = "JUPYTER_GPUCKPT_RETENTION"
_RETENTION = ("keep_last", "keep_suspends", "keep_within", "max_bytes")
#: The largest value of a rule: a JSON number up to this is exact.
_MOST = 2**53
_RETENTION_HINT = f"The rules are {', '.join(_RETENTION)}, each with a number that is not negative."
#: The most threads of an operation: more do not make a save faster, because the disk or the memory bus is the limit.
MAX_THREADS = 16


_log = logging.getLogger(__name__)


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A daemon's settings. Only `data_dir` is part of its place: a running daemon keeps its other settings.

    Empty `store_dir`: `data_dir`/store. Empty `criu`: searched for. `threads` 0: one per CPU, at most 16. `memory_bytes` 0: a
    quarter of the memory that is free when an operation begins.
    """

    data_dir: str
    store_dir: str = ""
    criu: str = ""
    threads: int = 0
    memory_bytes: int = 0
    idle_exit_seconds: float = DEFAULT_IDLE_EXIT_SECONDS
    undo_delete_seconds: float = DEFAULT_UNDO_DELETE_SECONDS
    #: The most bytes of local chunks of snapshots that remotes have, too; 0: no limit.
    near_bytes: int = 0
    #: The interval at which packs that no snapshot needs are removed from each remote; 0: never.
    collect_remote_every_seconds: float = DEFAULT_COLLECT_REMOTE_EVERY_SECONDS
    #: Whether to look for notices that this machine goes.
    reclaim_notices: bool = True
    #: Whether saves read only the memory that was written since the last one.
    track_writes: bool = True

    @property
    def data(self) -> Path:
        """The data directory: state, log and, by default, the store."""
        return Path(self.data_dir).expanduser().absolute()

    @property
    def store(self) -> Path:
        """The directory of the store."""
        return (
            Path(self.store_dir).expanduser().absolute() if self.store_dir else self.data / "store"
        )

    @property
    def state(self) -> Path:
        """The directory of the daemon's records of kernels."""
        return self.data / "state"

    @property
    def log_file(self) -> Path:
        """The path of the daemon's log."""
        return self.data / "log" / "gpuckptd.log"

    @property
    def worker_threads(self) -> int:
        """The number of threads of an operation."""
        return self.threads or min(MAX_THREADS, processors())


def default_retention(environ: Mapping[str, str] = os.environ) -> Mapping[str, float]:
    """Return the rules of `$JUPYTER_GPUCKPT_RETENTION`, by which a hub sets the defaults of all servers.

    A rule that is unknown or has a bad value is ignored, with a warning: it may be one of a newer hub, and without it a server still works.
    """
    return _usable_retention(environ.get(RETENTION_VARIABLE, ""))


def require_retention(rules: object) -> None:
    """Raise ConfigurationError unless servers of this version use all of these rules."""
    _, wrong = _retention(rules)
    if wrong:
        raise ConfigurationError(wrong[0], hint=_RETENTION_HINT)


@functools.cache  # so that the warning comes once
def _usable_retention(text: str) -> Mapping[str, float]:
    try:
        found = decoding.from_json(text or "{}", object)
    except (msgspec.DecodeError, RecursionError):
        found = None
    rules, wrong = _retention(found)
    for sentence in wrong:
        _log.warning("%s: %s It is ignored. %s", RETENTION_VARIABLE, sentence, _RETENTION_HINT)
    return rules


def _retention(rules: object) -> tuple[dict[str, float], list[str]]:
    """Return the valid rules, and a sentence about each invalid one."""
    if not isinstance(rules, dict):
        return {}, ["The rules are not a JSON object."]
    usable, wrong = {}, []
    for name, value in rules.items():
        if name not in _RETENTION:
            wrong.append(f"The rule {name!r} is unknown.")
        elif isinstance(value, bool) or not isinstance(value, int | float):
            wrong.append(f"The rule {name} is not a number.")
        elif not 0 <= value <= _MOST:
            wrong.append(f"The rule {name} is negative or too large.")
        else:
            usable[name] = float(value) if name == "keep_within" else int(value)
    return usable, wrong


def from_environment(environ: Mapping[str, str] = os.environ) -> Settings:
    """Return the settings of a client without a configuration of its own. Raises ConfigurationError.

    Data is below the user's data directory (XDG base directory specification), unless a variable names another directory.
    """
    above = environ.get("XDG_DATA_HOME") or Path("~/.local/share").expanduser()
    idle_exit = environ.get("JUPYTER_GPUCKPT_IDLE_EXIT") or DEFAULT_IDLE_EXIT_SECONDS
    try:
        return Settings(
            data_dir=environ.get("JUPYTER_GPUCKPT_DATA_DIR") or str(Path(above, "jupyter-gpuckpt")),
            store_dir=environ.get("JUPYTER_GPUCKPT_STORE_DIR", ""),
            criu=environ.get("JUPYTER_GPUCKPT_CRIU", ""),
            idle_exit_seconds=float(idle_exit),
            reclaim_notices=environ.get("JUPYTER_GPUCKPT_RECLAIM_NOTICES") != "0",
            track_writes=environ.get("JUPYTER_GPUCKPT_TRACK_WRITES") != "0",
        )
    except ValueError as error:
        raise ConfigurationError(
            f"JUPYTER_GPUCKPT_IDLE_EXIT is not a number of seconds: {idle_exit!r}",
            hint="Set it to a number, or remove it.",
        ) from error


def from_json(text: str | bytes) -> Settings:
    """Decode the settings that a client passed to the daemon."""
    try:
        return decoding.from_json(text, Settings)
    except msgspec.DecodeError as error:
        raise ConfigurationError(f"The daemon's settings are not valid: {error}") from error
