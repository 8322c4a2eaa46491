"""The daemon's settings as traits, for doors: `c.GpuCkptDaemon.data_dir = ...` in any Jupyter configuration file."""

from __future__ import annotations

import os

from traitlets import Float, Int, Unicode, default
from traitlets.config import Configurable

from . import daemon_settings
from .daemon_settings import Settings
from .model import RetentionPolicy


class GpuCkptDaemon(Configurable):
    """Where the daemon keeps things and how it works; read when a door starts or finds the daemon."""

    data_dir = Unicode(
        help="""Directory of the daemon's state, its log and, unless store_dir is set, the snapshots. Doors with different
        data directories use different daemons. Default: $JUPYTER_GPUCKPT_DATA_DIR, else jupyter-gpuckpt in
        $XDG_DATA_HOME, else ~/.local/share/jupyter-gpuckpt."""
    ).tag(config=True)

    store_dir = Unicode(
        help="""Directory of the snapshots: it needs room for the memory of the kernels that are saved. Default:
        $JUPYTER_GPUCKPT_STORE_DIR, else the directory `store` in data_dir."""
    ).tag(config=True)

    criu = Unicode(
        help="""Path of the criu program. Default: $JUPYTER_GPUCKPT_CRIU, else empty, which means that it is looked for."""
    ).tag(config=True)

    threads = Int(
        0,
        min=0,
        help="""Number of threads that compress, hash and write for one save or resume. Default: 0, which means one per
        processor, at most 16.""",
    ).tag(config=True)

    memory_bytes = Int(
        0,
        min=0,
        help="""Bytes of memory that a save or resume may work with: what is read and not yet written. With little there are
        fewer threads. The kernel's own memory, and what a kernel rewrites while it is saved, do not count. Default: 0, which
        means a quarter of what is free when it begins.""",
    ).tag(config=True)

    idle_exit = Float(
        min=0.0,
        help="""Seconds after which a daemon without running kernels that nobody is connected to leaves. Suspended kernels
        do not hold it. Default: $JUPYTER_GPUCKPT_IDLE_EXIT, else 60.""",
    ).tag(config=True)

    undo_delete_for = Float(
        daemon_settings.DEFAULT_UNDO_DELETE_SECONDS,
        min=0.0,
        help="""Seconds for which the deletion of a snapshot can be undone; its bytes stay on the disk until then. Default: 60.
        0: it is gone at once.""",
    ).tag(config=True)

    measure_every = Float(
        daemon_settings.DEFAULT_MEASURE_EVERY_SECONDS,
        min=0.0,
        help="""Seconds after which the memory of running kernels and their use of GPUs are measured again; pages are told what
        changed. Default: 10. 0: never.""",
    ).tag(config=True)

    keep_last = Int(
        3,
        min=0,
        help="""How many of a kernel's snapshots stay that were taken automatically: periodically, when it was idle, when a
        server stopped. Those beyond are removed after a save or suspend, unless another rule keeps them. Snapshots taken by
        hand, those with a name of their own, and what a kernel needs to go on are never removed. Default: 3: the latest, one
        from before a mistake that the latest holds already, and one more; each costs what changed since the one before.
        0: no rule; without this and keep_within all stay.""",
    ).tag(config=True)

    keep_within = Float(
        0.0,
        min=0.0,
        help="""Seconds before a kernel's latest automatic snapshot within which all of them stay, whatever keep_last says.
        Default: 0, which means no rule.""",
    ).tag(config=True)

    max_bytes = Int(
        0,
        min=0,
        help="""How many bytes all snapshots may take together in the store, what they share counted once. Beyond it the oldest
        that were taken automatically are removed, also those that keep_last and keep_within keep; what may not be removed
        is counted and may go beyond it. Default: 0, which means no limit.""",
    ).tag(config=True)

    @default("data_dir")
    def _default_data_dir(self) -> str:
        return daemon_settings.default_data_dir()

    @default("store_dir")
    def _default_store_dir(self) -> str:
        return os.environ.get("JUPYTER_GPUCKPT_STORE_DIR", "")

    @default("criu")
    def _default_criu(self) -> str:
        return os.environ.get("JUPYTER_GPUCKPT_CRIU", "")

    @default("idle_exit")
    def _default_idle_exit(self) -> float:
        return daemon_settings.default_idle_exit()

    def settings(self) -> Settings:
        """The same as a plain record."""
        return Settings(
            data_dir=self.data_dir,
            store_dir=self.store_dir,
            criu=self.criu,
            threads=self.threads,
            memory_bytes=self.memory_bytes,
            idle_exit_seconds=self.idle_exit,
            undo_delete_seconds=self.undo_delete_for,
            measure_every_seconds=self.measure_every,
        )

    def retention(self) -> RetentionPolicy:
        """What may be removed after a save or suspend. It goes with each of them instead of being a setting of the daemon:
        whoever started that, the command line for one, need not know what the user of a server wants to keep."""
        return RetentionPolicy(self.keep_last, self.keep_within, self.max_bytes)
