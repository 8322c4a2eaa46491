"""The daemon's settings as traits, for doors: `c.GpuCkptDaemon.data_dir = ...` in any Jupyter configuration file."""

from __future__ import annotations

import os

from traitlets import Float, Int, Unicode, default
from traitlets.config import Configurable

from . import daemon_settings
from .daemon_settings import Settings


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

    idle_exit = Float(
        min=0.0,
        help="""Seconds after which a daemon without running kernels that nobody is connected to leaves. Suspended kernels
        do not hold it. Default: $JUPYTER_GPUCKPT_IDLE_EXIT, else 60.""",
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
            idle_exit_seconds=self.idle_exit,
        )
