"""What a daemon is told when it is started: plain values. `config.py` makes them from traits, this module from the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from . import decoding
from .errors import ConfigurationError

DEFAULT_IDLE_EXIT_SECONDS = 60.0
DEFAULT_UNDO_DELETE_SECONDS = 60.0
DEFAULT_MEASURE_EVERY_SECONDS = 10.0
#: More threads than this do not make a save faster: the disk or the memory bus is the limit.
MOST_THREADS = 16


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A daemon's settings. Only `data_dir` is part of its place: a daemon that runs already keeps the others it has.

    Empty `store_dir`: `data_dir`/store. Empty `criu`: looked for. `threads` 0: one per processor, at most 16.
    `memory_bytes` 0: a quarter of what is free when an operation begins.
    """

    data_dir: str
    store_dir: str = ""
    criu: str = ""
    threads: int = 0
    memory_bytes: int = 0
    idle_exit_seconds: float = DEFAULT_IDLE_EXIT_SECONDS
    undo_delete_seconds: float = DEFAULT_UNDO_DELETE_SECONDS
    #: How often running kernels are measured; 0: only when somebody asks.
    measure_every_seconds: float = DEFAULT_MEASURE_EVERY_SECONDS

    @property
    def data(self) -> Path:
        """The data directory: state, log and, unless set otherwise, the store."""
        return Path(self.data_dir).expanduser().absolute()

    @property
    def store(self) -> Path:
        """Where the snapshots are."""
        return (
            Path(self.store_dir).expanduser().absolute() if self.store_dir else self.data / "store"
        )

    @property
    def state(self) -> Path:
        """What the daemon knows of its kernels."""
        return self.data / "state"

    @property
    def log_file(self) -> Path:
        """The daemon's log."""
        return self.data / "log" / "gpuckptd.log"

    @property
    def worker_threads(self) -> int:
        """How many threads an operation uses."""
        return self.threads or min(MOST_THREADS, len(os.sched_getaffinity(0)))


def default_data_dir(environ: Mapping[str, str] = os.environ) -> str:
    """`$JUPYTER_GPUCKPT_DATA_DIR`, else jupyter-gpuckpt below the user's data directory (XDG base directory specification)."""
    chosen = environ.get("JUPYTER_GPUCKPT_DATA_DIR", "")
    above = environ.get("XDG_DATA_HOME") or str(Path("~/.local/share").expanduser())
    return chosen or str(Path(above) / "jupyter-gpuckpt")


def default_idle_exit(environ: Mapping[str, str] = os.environ) -> float:
    """`$JUPYTER_GPUCKPT_IDLE_EXIT` in seconds, else 60."""
    text = environ.get("JUPYTER_GPUCKPT_IDLE_EXIT", "")
    try:
        return float(text) if text else DEFAULT_IDLE_EXIT_SECONDS
    except ValueError as error:
        raise ConfigurationError(
            f"JUPYTER_GPUCKPT_IDLE_EXIT is not a number of seconds: {text!r}",
            hint="Set it to a number, or remove it.",
        ) from error


def from_environment(environ: Mapping[str, str] = os.environ) -> Settings:
    """The settings of a door that has no configuration of its own."""
    return Settings(
        data_dir=default_data_dir(environ),
        store_dir=environ.get("JUPYTER_GPUCKPT_STORE_DIR", ""),
        criu=environ.get("JUPYTER_GPUCKPT_CRIU", ""),
        idle_exit_seconds=default_idle_exit(environ),
    )


def from_json(text: str | bytes) -> Settings:
    """The settings that a client passed on."""
    try:
        return decoding.from_json(text, Settings)
    except msgspec.DecodeError as error:
        raise ConfigurationError(f"The daemon's settings are not valid: {error}") from error
