"""The configuration of the server extension, `c.GpuCkptServer`."""

from __future__ import annotations

import fnmatch

from traitlets import Bool, Float, Int, List, Unicode
from traitlets.config import Configurable


class ServerTraits(Configurable):
    """The traits of `GpuCkptServer`."""

    use_for_all_kernels = Bool(
        True,
        help="""Whether kernels start under the engine where their kernelspec names no provisioner. Off: only kernelspecs
        whose metadata names gpuckpt-provisioner do. A configured
        KernelProvisionerFactory.default_provisioner_name is never changed.""",
    ).tag(config=True)

    allowed_kernelspecs = List(
        Unicode(),
        default_value=["*"],
        help="""Names of the kernelspecs whose kernels start under the engine, with * and ? as in file names.""",
    ).tag(config=True)

    excluded_kernelspecs = List(
        Unicode(),
        help="""Names of kernelspecs whose kernels start plainly although allowed_kernelspecs names them, with * and ?.""",
    ).tag(config=True)

    reconnect_timeout = Float(
        20.0,
        min=0.0,
        help="""Seconds that a resume waits at most for the kernel to answer and for every open page to be connected to it
        again. After that it counts as done, and output of the first moments may be missing in a page.""",
    ).tag(config=True)

    resume_busy = Bool(
        True,
        help="""Whether a kernel that was running a cell when its server stopped goes on under the next server, before
        anybody opens its notebook.""",
    ).tag(config=True)

    renewed_variables = List(
        Unicode(),
        default_value=["JUPYTERHUB_*", "JPY_*", "JUPYTER_TOKEN", "SLURM_*", "KUBERNETES_*"],
        help="""Names of environment variables, with * and ? as in file names, that belong to a server and not to its kernels: an
        IPython kernel that is resumed takes this server's instead of those that it was saved with. CUDA_VISIBLE_DEVICES is
        taken, too, where the kernel's names GPUs that this server's does not.""",
    ).tag(config=True)

    autosave_interval = Float(
        0.0,
        min=0.0,
        help="""Seconds after which a running kernel that changed is saved, again and again, while it runs on: what is lost at
        most when the machine is. How many of these snapshots stay, GpuCkptDaemon.keep_last and its like say. 0: never.""",
    ).tag(config=True)

    autosave_rest = Float(
        10.0,
        min=0.0,
        help="""How many times as long as its last periodic save took a kernel is left alone by them, if that is longer than
        autosave_interval: what takes long does not happen all the time.""",
    ).tag(config=True)

    trim = Bool(
        True,
        help="""Whether an IPython kernel that runs no cell gives back memory that it does not use before it is saved or suspended
        by itself (periodically, when it was idle, when the server stops): garbage, the caches of PyTorch and CuPy, and what
        the C library keeps. Snapshots become smaller; the next tensors take a moment longer.""",
    ).tag(config=True)

    undo_shutdown_for = Float(
        30.0,
        min=0.0,
        help="""Seconds for which the shutdown of a kernel can be undone; until then its processes stand still and use no
        processor. 5 at most for a kernel that uses a GPU. 0: kernels end at once.""",
    ).tag(config=True)

    undo_restart_within = Float(
        3.0,
        min=0.0,
        help="""Seconds for which the restart of a kernel waits at most for a snapshot of what it held, so that the restart can
        be undone; the one of the restart before is removed. 0: nothing is kept.""",
    ).tag(config=True)

    park_after = Float(
        0.0,
        min=0.0,
        help="""Seconds without a cell after which a kernel's GPU memory is moved to RAM, so that others can use the GPU. The
        next cell moves it back. 0: never.""",
    ).tag(config=True)

    gpu_wait = Float(
        600.0,
        min=0.0,
        help="""Seconds that a kernel which comes back waits for GPU memory while all that hold some compute. Idle kernels of
        this server are parked for it at once, the least recently used first.""",
    ).tag(config=True)

    stop_timeout = Float(
        0.0,
        min=0.0,
        help="""Seconds that the stop of the server waits at most for its kernels to be suspended, the smallest first. One that
        takes longer runs on until the daemon ends. 0: as long as it takes.""",
    ).tag(config=True)

    kept_output_bytes = Int(
        64_000_000,
        min=0,
        help="""How many bytes of a kernel's output are kept on disk while a cell runs or no page is connected, for the page
        that connects next. What goes beyond that is counted, and the page is told.""",
    ).tag(config=True)

    def refusal(self, kernel_name: str) -> str:
        """Return why kernels of a kernelspec start plainly; empty if they start under the engine."""
        if any(fnmatch.fnmatchcase(kernel_name, pattern) for pattern in self.excluded_kernelspecs):
            return f"GpuCkptServer.excluded_kernelspecs excludes {kernel_name}."
        if not any(
            fnmatch.fnmatchcase(kernel_name, pattern) for pattern in self.allowed_kernelspecs
        ):
            return f"GpuCkptServer.allowed_kernelspecs does not name {kernel_name}."
        return ""
