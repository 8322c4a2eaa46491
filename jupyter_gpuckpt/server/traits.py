"""The configuration of the server extension, `c.GpuCkptServer`."""

from __future__ import annotations

import fnmatch
import os

from traitlets import Bool, Dict, Float, HasTraits, Int, List, TraitError, Unicode, default
from traitlets.config import Configurable

from ..client import save_costs
from ..wire import durations

#: The environment variable by which a hub tells its user's choice of a clean start.
CLEAN_START_ENV = "JUPYTER_GPUCKPT_CLEAN_START"


class Duration(Float[float, float | str]):
    """A trait for a duration in seconds that also takes texts such as "10m"."""

    info_text = 'a number of seconds, or a text such as "30s", "10m" or "1h"'

    def validate(self, obj: HasTraits | None, value: object) -> float:
        """Return a value in seconds."""
        try:
            return durations.to_seconds(value)
        except ValueError:
            self.error(obj, value)
            raise TraitError from None  # `error` raises

    def from_string(self, s: str) -> float:
        """Return the value of an option of the command line."""
        try:
            return durations.to_seconds(s)
        except ValueError as error:
            raise TraitError(str(error)) from None


class ServerTraits(Configurable):
    """The traits of `GpuCkptServer`."""

    use_for_all_kernels = Bool(
        True,
        help="""Whether kernels can be saved whose kernelspec names no provisioner. Off: only kernels whose kernelspec names
        gpuckpt-provisioner in its metadata. A configured KernelProvisionerFactory.default_provisioner_name is never changed.""",
    ).tag(config=True)

    allowed_kernelspecs = List(
        Unicode(),
        default_value=["*"],
        help="""Names of the kernelspecs whose kernels can be saved, with * and ? as in file names.""",
    ).tag(config=True)

    excluded_kernelspecs = List(
        Unicode(),
        help="""Names of kernelspecs whose kernels cannot be saved although allowed_kernelspecs names them, with * and ?.""",
    ).tag(config=True)

    resume_busy = Bool(
        True,
        help="""Whether a kernel that was running a cell when its server stopped is resumed by the next server at its start, before
        a user opens the notebook.""",
    ).tag(config=True)

    clean_start = Bool(
        help="""Whether the server starts without the sessions that earlier servers left: these stay as they are until a server starts
        that lists them. A hub sets the default by the environment variable JUPYTER_GPUCKPT_CLEAN_START, by its
        user's choice (GpuCkptSpawnerMixin.offer_clean_start).""",
    ).tag(config=True)

    @default("clean_start")
    def _default_clean_start(self) -> bool:
        return os.environ.get(CLEAN_START_ENV) == "1"

    renewed_variables = List(
        Unicode(),
        default_value=["JUPYTERHUB_*", "JPY_*", "JUPYTER_TOKEN", "SLURM*", "KUBERNETES_*"],
        help="""Names of environment variables, with * and ? as in file names, that belong to a server and not to its kernels: a
        resumed IPython kernel takes this server's values instead of those with which it was saved. It also takes
        CUDA_VISIBLE_DEVICES if its own names GPUs that this server's does not.""",
    ).tag(config=True)

    lose_at_most = Duration(
        save_costs.DEFAULT_SECONDS,
        help="""The most work of a running kernel that is lost if the machine fails: a number of seconds, or a text such as "30s", "10m" or
        "1h". A changed kernel is saved so often, while it runs on. Where its saves would cost more than `autosave_cost` allows, it is
        saved less often, and the panel says how often. Older ones of these snapshots are removed, here and in remotes: up to an hour
        one of five minutes is kept, up to a day one an hour, later one a day, at most 50 of a kernel, and besides the newest of
        each no more than a tenth of the disk's free space. With less than 1 GB (or a twentieth of the disk) free, no kernel is saved
        periodically. When a user shuts a kernel down, they are deleted; of the newest that can be undone for a day.
        GpuCkptDaemon.max_bytes limits them further. 0: kernels are not saved periodically.""",
    ).tag(config=True)

    autosave_cost = Float(
        save_costs.DEFAULT_SHARE,
        min=0.001,
        help="""The largest share of one processor that the periodic saves of a kernel may use. They stop it for a fifth of that share of
        its time at most.""",
    ).tag(config=True)

    trim = Bool(
        True,
        help="""Whether an IPython kernel that runs no cell frees memory that it does not use before it is saved or suspended
        automatically (periodically, when it was idle, when the server stops): garbage, the caches of PyTorch and CuPy, and
        what the C library keeps. Snapshots become smaller; the next tensors take a moment longer.""",
    ).tag(config=True)

    undo_shutdown_for = Float(
        30.0,
        min=0.0,
        help="""Seconds for which the shutdown of a kernel can be undone; until then its processes are stopped and use no processor.
        At most 5 for a kernel that uses a GPU. 0: kernels end at once.""",
    ).tag(config=True)

    undo_restart_within = Float(
        60.0,
        min=0.0,
        help="""A restarted kernel's old process is kept, stopped, and saved while the new one runs; then it ends, and the snapshot of the
        restart before is removed. This is how many seconds it is kept if it cannot be saved; it ends earlier if memory is short.
        0: it is not kept, and a restart cannot be undone.""",
    ).tag(config=True)

    idle_notice = Float(
        60.0,
        min=0.0,
        help="""How many seconds before an idle kernel is suspended an open page says so and offers to keep it running.
        Kernels with open pages are suspended only with MappingKernelManager.cull_connected. 0: without a notice.""",
    ).tag(config=True)

    park_after = Float(
        0.0,
        min=0.0,
        help="""Seconds without a cell after which a kernel's GPU memory is moved to RAM, so that other kernels can use the GPU. The
        next cell moves it back. 0: never.""",
    ).tag(config=True)

    ram_high = Float(
        0.0,
        min=0.0,
        max=1.0,
        help="""The share of the memory of this machine, and of each limit of the control groups of this server, from which idle
        kernels are suspended, the least recently used first, until less is in use; 0.9 is a good value. Where Linux
        already makes processes wait until memory is free, twice as much is kept free. A kernel that runs a cell is never suspended.
        0: never.""",
    ).tag(config=True)

    gpu_wait = Float(
        600.0,
        min=0.0,
        help="""The most seconds that a kernel which is resumed waits for GPU memory while all kernels that hold some are busy. Idle
        kernels of this server are parked for it at once, the least recently used first.""",
    ).tag(config=True)

    stop_timeout = Float(
        0.0,
        min=0.0,
        help="""The most seconds that the stop of the server waits for its kernels to be suspended, the smallest first. A kernel
        that takes longer runs on until the daemon ends. 0: as long as it takes.""",
    ).tag(config=True)

    kept_output_bytes = Int(
        64_000_000,
        min=0,
        help="""The most bytes of a kernel's output that are kept on disk while a cell runs or no page is connected, for the page
        that connects next. Messages beyond that are counted, and the page shows how many are missing.""",
    ).tag(config=True)

    save_before_agents = Bool(
        False,
        help="""Whether a kernel that has changed is saved before each cell of an AI agent: of this package's tools, and of the clients
        that `agent_clients` names. The cell waits until the kernel has been paused for it; the newest of these snapshots are kept
        (`c.GpuCkptDaemon.keep_tool_saves`).""",
    ).tag(config=True)

    agent_clients = List(
        Unicode(),
        help="""Patterns of the clients that are AI agents, for `save_before_agents`. A pattern is compared with the user name in a
        client's messages and with the program that it states (the header User-Agent of its websocket); `*` stands for any
        characters.""",
    ).tag(config=True)

    ready_kernels = Dict(
        value_trait=Int(min=0),
        key_trait=Unicode(),
        help="""How many kernels of each template wait for the next notebook, for example {"torch-ready": 1}: resumed and stopped, so that
        one of them starts in some hundredths of a second. Each takes the memory of a kernel, on its GPU, too; they are ended when
        memory or a GPU is short, and with the server.""",
    ).tag(config=True)

    tools_token = Unicode(
        help="""The token by which an MCP client may use the tools that change kernels, where jupyter-server-mcp serves the tools for AI
        agents in this server: the client sends it as the header `Authorization: Bearer TOKEN`. Empty: only tools that list and compare.
        Only programs of this server's own user on this machine can use any of them. `jupyter gpuckpt mcp` needs no token."""
    ).tag(config=True)

    def refusal(self, kernel_name: str) -> str:
        """Return the reason why kernels of a kernelspec start without the engine; empty if they start under it."""
        if any(fnmatch.fnmatchcase(kernel_name, pattern) for pattern in self.excluded_kernelspecs):
            return f"GpuCkptServer.excluded_kernelspecs excludes {kernel_name}."
        if not any(
            fnmatch.fnmatchcase(kernel_name, pattern) for pattern in self.allowed_kernelspecs
        ):
            return f"GpuCkptServer.allowed_kernelspecs does not name {kernel_name}."
        return ""
