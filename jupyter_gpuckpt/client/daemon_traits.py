"""The daemon's settings as traits, for servers and provisioners: `c.GpuCkptDaemon.data_dir = ...` in a Jupyter configuration file."""

from __future__ import annotations

import msgspec
from traitlets import Bool, Float, Int, Unicode, default
from traitlets.config import Configurable

from ..wire import daemon_settings
from ..wire.daemon_settings import Settings
from ..wire.retention_policy import (
    KEPT_TOOL_SAVES,
    MAX_BYTES,
    MAX_COUNT,
    MAX_SECONDS,
    RetentionPolicy,
)


def _of_environment(name: str) -> object:
    """Return a default that the environment may set."""
    return default(name)(lambda _: getattr(daemon_settings.from_environment(), name))


def _of_hub(name: str) -> object:
    """Return a default that the hub's retention rules may set."""
    return default(name)(
        lambda self: daemon_settings.default_retention().get(
            name, self.traits()[name].default_value
        )
    )


class GpuCkptDaemon(Configurable):
    """The daemon's settings; read by a client that starts or finds the daemon."""

    data_dir = Unicode(
        help="""Directory of the daemon's state, its log and, unless store_dir is set, the snapshots. Clients with different
        data directories use different daemons. Default: $JUPYTER_GPUCKPT_DATA_DIR, else jupyter-gpuckpt in
        $XDG_DATA_HOME, else ~/.local/share/jupyter-gpuckpt."""
    ).tag(config=True)

    store_dir = Unicode(
        help="""Directory of the snapshots: it needs room for the memory of the kernels that are saved. Default:
        $JUPYTER_GPUCKPT_STORE_DIR, else the directory `store` in data_dir."""
    ).tag(config=True)

    criu = Unicode(
        help="""Path of the criu program. Default: $JUPYTER_GPUCKPT_CRIU, else empty, which means that it is searched for."""
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
        help="""Bytes of memory that a save or resume may use for data that is read and not yet written. With a low limit fewer
        threads work. The kernel's own memory does not count, nor does memory that a kernel overwrites while it is saved.
        Default: 0, which means a quarter of the memory that is free when the operation begins.""",
    ).tag(config=True)

    undo_delete_for = Float(
        daemon_settings.DEFAULT_UNDO_DELETE_SECONDS,
        min=0.0,
        help="""Seconds for which the deletion of a snapshot can be undone; its bytes stay on the disk until then. Default: 60.
        0: it cannot be undone.""",
    ).tag(config=True)

    near_bytes = Int(
        0,
        min=0,
        help="""How many bytes all snapshots may take together on this machine's disk, with shared data counted once. Beyond that
        the content of the least recently used ones is removed here, if every remote has them (docs/reference/remotes.md). They stay
        listed, and a resume fetches them. Default: 0, which means no limit. Without a remote nothing is removed.""",
    ).tag(config=True)

    collect_remote_every = Float(
        daemon_settings.DEFAULT_COLLECT_REMOTE_EVERY_SECONDS,
        min=0.0,
        help="""Seconds between two removals of packs that no snapshot needs from each remote, by one of the machines that use it
        (docs/reference/remotes.md). Each reads all tables of contents, for which the provider may bill requests. Default: a week. 0: never
        automatically; `remote erase` always removes them.""",
    ).tag(config=True)

    reclaim_notices = Bool(
        help="""Whether the daemon looks for notices that this machine will go (docs/reclaim.md), and suspends all kernels
        before. On a machine of an unknown provider it sends no requests. Default: yes, unless
        $JUPYTER_GPUCKPT_RECLAIM_NOTICES is 0."""
    ).tag(config=True)

    track_writes = Bool(
        help="""Whether a save reads only the memory that the kernel has written since its last save (docs/small-changes.md).
        Otherwise, and before Linux 6.13, every save reads all memory, which takes 2 s of processor time for each GB. Default: yes,
        unless $JUPYTER_GPUCKPT_TRACK_WRITES is 0."""
    ).tag(config=True)

    keep_last = Int(
        3,
        min=0,
        help="""How many of a kernel's automatic snapshots are kept: those taken when it was idle or when a server stopped. Periodic
        saves do not count (GpuCkptServer.lose_at_most). Older ones are removed after a save or suspend, unless another rule keeps
        them. Snapshots saved by hand, pinned and named ones, and those that a kernel needs are never removed. Default: 3: the latest,
        one from before a mistake that the latest contains already, and one more; each takes the space of the changes
        since the one before. 0: no rule; without this and keep_within all are kept.""",
    ).tag(config=True)

    keep_suspends = Int(
        10,
        min=0,
        help="""How many of a kernel's suspends by hand are kept. Older ones are removed after a save or suspend, except those that
        are pinned, have a name or a note, or that a kernel needs. The other rules do not count or remove suspends by hand. Default: 10,
        enough to find a state of the last days; each takes the space of the changes since the one before. 0: all are kept.""",
    ).tag(config=True)

    keep_tool_saves = Int(
        KEPT_TOOL_SAVES,
        min=0,
        help="""How many of the snapshots that tools for AI agents took of a kernel and of their branches of it are kept. Older ones are
        removed, except those that are pinned or that a kernel needs. Default: 40. 0: they count as automatic ones.""",
    ).tag(config=True)

    keep_within = Float(
        0.0,
        min=0.0,
        help="""Seconds before a kernel's latest automatic snapshot within which all of them are kept, whatever keep_last says.
        Default: 0, which means no rule.""",
    ).tag(config=True)

    max_bytes = Int(
        0,
        min=0,
        help="""How many bytes all snapshots may take together in the store, with shared data counted once. Beyond that the oldest
        automatic ones are removed, also those that keep_last and keep_within keep. Snapshots that must not be removed are
        counted, too, and may exceed the limit. Default: 0, which means no limit.""",
    ).tag(config=True)

    _data_dir, _store_dir = _of_environment("data_dir"), _of_environment("store_dir")
    _criu, _reclaim_notices = _of_environment("criu"), _of_environment("reclaim_notices")
    _track_writes = _of_environment("track_writes")
    _keep_last, _keep_suspends = _of_hub("keep_last"), _of_hub("keep_suspends")
    _keep_within, _max_bytes = _of_hub("keep_within"), _of_hub("max_bytes")

    def settings(self) -> Settings:
        """Return the settings as a plain record."""
        return msgspec.structs.replace(
            daemon_settings.from_environment(),
            undo_delete_seconds=self.undo_delete_for,
            collect_remote_every_seconds=self.collect_remote_every,
            **{
                name: getattr(self, name)
                for name in Settings.__struct_fields__
                if self.has_trait(name)
            },
        )

    def retention(self) -> RetentionPolicy:
        """Return the retention policy, which is sent with each save and suspend.

        It is not among the daemon's settings, because the client that starts the daemon, e.g. the command line, may not have the
        configuration of a server's user.
        """
        # A value beyond what the daemon accepts must not let a save fail.
        return RetentionPolicy(
            min(self.keep_last, MAX_COUNT),
            min(self.keep_within, MAX_SECONDS),
            min(self.max_bytes, MAX_BYTES),
            keep_suspends=min(self.keep_suspends, MAX_COUNT),
            keep_tool_saves=min(self.keep_tool_saves, MAX_COUNT),
            thins=True,
        )
