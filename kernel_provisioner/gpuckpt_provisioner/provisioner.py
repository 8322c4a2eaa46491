"""The provisioner: launches a kernel through the daemon, watches it, ends it.

Covers: launch rules, liveness, signals, shutdown, taking over a kernel of an earlier server. Does not cover: save, suspend
and resume, which the server extension and the command line request from the daemon. See also: `owner.py`.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, cast

from jupyter_client.provisioning.local_provisioner import LocalProvisioner
from traitlets import Bool, Enum, Int, List, Unicode, default

from jupyter_gpuckpt.client import relayed_kernelspecs
from jupyter_gpuckpt.client.daemon_traits import GpuCkptDaemon
from jupyter_gpuckpt.errors import (
    DaemonUnavailable,
    GpuCkptError,
    HostError,
    KernelNotFound,
    StoreFull,
    StoreUnavailable,
)
from jupyter_gpuckpt.wire import calls, manager_secrets
from jupyter_gpuckpt.wire.folder_records import FolderRules
from jupyter_gpuckpt.wire.place import start_time
from jupyter_gpuckpt.wire.states import ABSENT, KernelState

from . import template_starts
from .exit_status import KILLED, exit_code
from .kernel_ports import KernelPorts
from .launch_spec import connection_room, launch_spec, log_path, saved_manager
from .owner import KernelOwner, ScriptOwner

if TYPE_CHECKING:
    from jupyter_client.connect import KernelConnectionInfo
    from jupyter_client.manager import KernelManager

    from jupyter_gpuckpt.client import Client
    from jupyter_gpuckpt.wire.manifest_records import LaunchSpec
    from jupyter_gpuckpt.wire.protocol import Kernel, Position, SuspendedKernel

    from .launch_spec import GpuCopy, OnLostLease

_T = TypeVar("_T")


class GpuCkptProvisioner(LocalProvisioner):
    """Provisioner that starts kernels under the engine; to Jupyter they behave as if started by `local-provisioner`.

    Where the engine cannot work, the kernel is started without it; `plain_reason` and `plain_hint` then say why. A suspended
    kernel counts as alive: `has_process` is True and `poll()` None, so nothing in Jupyter restarts or removes it.
    """

    private_shm = Bool(
        True,
        help="""Whether kernels get a /dev/shm of their own, which is saved with them. Switch it off for kernels that share memory
        with other programs through /dev/shm; such a kernel cannot be saved while it does.""",
    ).tag(config=True)

    io_uring = Bool(
        False,
        help="""Whether programs in kernels may use io_uring. A kernel cannot be saved while one does. Without it they fall back
        to epoll, as on the many systems where io_uring is switched off.""",
    ).tag(config=True)

    gpu_copy = Enum(
        ["own", "driver"],
        help="""Who copies GPU memory: a library of this project (`own`), which kernels then load, or the NVIDIA driver (`driver`). The
        library allocates GPU memory of 2 MB and more in a form that can be handed to another process. A save then stops a kernel with
        one GPU for less than a second, whatever its GPU memory. It is tried once after each boot of a machine with a GPU; where that
        fails, the driver copies, and `jupyter gpuckpt doctor` says why. Default: the environment variable JUPYTER_GPUCKPT_GPU_COPY,
        else `own`.""",
    ).tag(config=True)

    on_lost_lease = Enum(
        ["auto", "continue", "pause"],
        "auto",
        help="""What happens to a kernel that runs here when another machine has taken its session over: `continue` lets it run on
        as a branch, `pause` suspends it on this machine, and `jupyter gpuckpt resume` goes on with it as a branch. `auto`
        continues kernels of a Jupyter server, whose users see it, and pauses those of scripts (papermill, nbclient), whose
        results nobody may want twice.""",
    ).tag(config=True)

    keep_files = List(
        Unicode(),
        help="""Files that travel with snapshots, for resumes on machines where they are missing or different. Each entry is a
        pattern of paths that are absolute, begin with `~/`, or are relative to the folder in which the kernel is started. `*`
        stands for any characters, also `/`, so `/*` matches every file. A snapshot contains the matching files that the kernel
        has open or mapped and does not write to, programs and libraries included. A resumed kernel sees these files as they
        were; the machine's own files are not changed.""",
    ).tag(config=True)

    working_folder = Bool(
        False,
        help="""Whether the files of the folder in which a kernel is started are in its snapshots, so that they can be restored with
        it. Without it they are only in those that AI agents' tools take. Left out are notebooks, `.git`, what the folder's .gitignore
        files name, and files of other users. A home directory is never saved.""",
    ).tag(config=True)

    working_folder_bytes = Int(
        1 << 30,
        min=0,
        help="""The most bytes of a working folder that are in snapshots; of a larger one no files are.""",
    ).tag(config=True)

    working_folder_files = Int(
        20_000,
        min=0,
        help="""The most files and directories of a working folder that are in snapshots; of one with more no files are.""",
    ).tag(config=True)

    working_folder_ignored = List(
        Unicode(),
        help="""Patterns of files that are left out of working folders in snapshots, as in a .gitignore.""",
    ).tag(config=True)

    working_folder_git = Bool(
        False, help="""Whether `.git` is in the working folders of snapshots."""
    ).tag(config=True)

    template = Unicode(
        help="""The template of which kernels are copies (`jupyter gpuckpt template`); the kernelspec of a template sets it. Where no
        copy can be made, the kernel is started as its kernelspec says, and runs the template's recipe before its first cell.""",
    ).tag(config=True)

    shared_templates = List(
        Unicode(),
        help="""The administrator's templates, by their names, of which kernels may be copies. Each kernel runs with its user's own ids.
        A user's own template of the same name comes first.""",
    ).tag(config=True)

    shared_data_dir = Unicode(
        help="""The data directory of the administrator who made them; it is only read. Whoever may write to it can run code as each
        user who starts a kernel from it.""",
    ).tag(config=True)

    @default("gpu_copy")
    def _default_gpu_copy(self) -> str:
        return os.environ.get("JUPYTER_GPUCKPT_GPU_COPY") or "own"

    #: Whether the notice was logged, which is done once per process, not once per kernel.
    _notice_given: ClassVar[bool] = False

    def __init__(self, **kwargs: Any) -> None:  # noqa: ANN401 - as the base
        super().__init__(**kwargs)
        #: The daemon's last record of the kernel; None: it was not launched, has ended, or runs without the engine.
        self.kernel: Kernel | None = None
        self.plain_reason = ""
        self.plain_hint = ""
        self._owner: KernelOwner | None = None
        self._saved: SuspendedKernel | None = None
        self._launched = False
        self._ended: int | None = None
        #: The start time of the process `pid`: together they identify a process even after its pid was given to another.
        self._began_at: float | None = None
        #: The position of the newest record about this start of the kernel; earlier records are ignored. None: all are.
        self._position: Position | None = None
        #: Held until the daemon holds them, or as long as a kernel without the engine exists.
        self._ports = KernelPorts(self._manager)

    # ---- launch ------------------------------------------------------------------------------------------------------

    async def pre_launch(self, **kwargs: Any) -> dict[str, Any]:  # noqa: ANN401 - as the base
        """Prepare a launch, or the adoption of an earlier server's kernel, for which the returned command is empty."""
        # An editor's kernelspec starts the relay, which has kernels of its own: here its kernel itself is started.
        if (spec := relayed_kernelspecs.real(self._manager.kernel_spec)) is not None:
            self._manager._kernel_spec = self.kernel_spec = spec
        # A restart calls this again: it must start a fresh kernel, never adopt one.
        if not self._launched:
            self._saved = self._owner_here().adoption(self.kernel_id)
        if self._saved is None:
            self._ports.choose_sockets(self.kernel_id)
            choose = bool(self._manager.cache_ports and not self.ports_cached)
            self._ports.hold(choose=choose)
            self.ports_cached = self.ports_cached or choose
            with (
                self._ports.released_on_error(),
                connection_room(self._owner_here().settings, self._manager),
            ):
                return await super().pre_launch(**kwargs)
        described = manager_secrets.joined(self._saved.jupyter, self._saved.secrets)
        with connection_room(self._owner_here().settings, self._manager):
            self._load_connection(described["connection_info"])
        return {"cmd": [], "env": kwargs.get("env", {})}

    async def launch_kernel(
        self,
        cmd: list[str],
        **kwargs: Any,  # noqa: ANN401 - as the base
    ) -> KernelConnectionInfo:
        """Start the kernel; return when its process exists. Raises what the local provisioner would raise."""
        with self._ports.released_on_error():
            return await self._launch_or_adopt(cmd, kwargs)

    async def _launch_or_adopt(
        self, cmd: list[str], kwargs: dict[str, Any]
    ) -> KernelConnectionInfo:
        is_restart, self._launched = self._launched, True
        self._ended = self.kernel = self._position = None
        self.plain_reason = self.plain_hint = ""
        if self._saved is not None:
            saved, self._saved = self._saved, None
            self._owner_here().attach(self.kernel_id, self)
            self.cwd = saved.cwd
            self._began(saved.kernel)
            return self.connection_info
        self.plain_reason = self._owner_here().refusal(self._manager.kernel_name)
        if self.plain_reason:
            return await super().launch_kernel(cmd, **kwargs)
        try:
            jupyter = {**saved_manager(self._manager), **self._owner_here().jupyter(self._manager)}
            kernel, connection = await _in_thread(
                lambda: self._launch(cmd, kwargs, jupyter, is_restart=is_restart)
            )
        except (HostError, DaemonUnavailable, StoreFull, StoreUnavailable) as error:
            self._notice(error)
            self.plain_reason, self.plain_hint = error.message, error.hint
            return await super().launch_kernel(cmd, **kwargs)
        self._began(kernel)
        self._ports.release()
        if connection != self._manager.get_connection_info():
            with connection_room(self._owner_here().settings, self._manager):
                self._load_connection(connection)
        self.cwd = kwargs.get("cwd") or Path.cwd()
        self._owner_here().launched(self.kernel_id, self.connection_info)
        return self.connection_info

    def _launch(
        self,
        command: list[str],
        kwargs: dict[str, Any],
        jupyter: dict[str, Any],
        *,
        is_restart: bool,
    ) -> template_starts.Started:
        owner = self._owner_here()
        client = owner.client()
        path = log_path(owner.settings, self.kernel_id)
        spec = launch_spec(
            self.kernel_id,
            command,
            kwargs,
            log_path=path,
            private_shm=self.private_shm,
            io_uring=self.io_uring,
            gpu_copy=cast("GpuCopy", self.gpu_copy),
            on_lost_lease=cast("OnLostLease", self.on_lost_lease),
            keep_files=self.keep_files,
            working_folder=FolderRules(
                self.working_folder,
                self.working_folder_bytes,
                self.working_folder_files,
                list(self.working_folder_ignored),
                self.working_folder_git,
            ),
            own_ports=self._ports.numbers,
            own_sockets=self._ports.sockets,
            jupyter=jupyter,
        )
        owner.attach(self.kernel_id, self)
        try:
            connection = cast("dict[str, Any]", self._manager.get_connection_info())
            copied = self._copied(client, owner, spec, connection, is_restart=is_restart)
            return copied or template_starts.Started(
                client.send(calls.launch(owner.owner_id, spec)), connection
            )
        except GpuCkptError:
            owner.detach(self.kernel_id)
            raise

    def _copied(
        self,
        client: Client,
        owner: KernelOwner,
        spec: LaunchSpec,
        connection: dict[str, Any],
        *,
        is_restart: bool,
    ) -> template_starts.Started | None:
        """Start the kernel as a copy of the template's; return None if there is none, or if that is impossible."""
        if not self.template:
            return None
        started = template_starts.start(
            self.template,
            owner.settings,
            client,
            owner.owner_id,
            spec,
            connection,
            self._manager.connection_file,
            shared=self.shared_data_dir if self.template in self.shared_templates else "",
            may_be_ready=not is_restart,  # clients are connected to the ports
        )
        if not isinstance(started, str):
            return started
        self.log.warning(
            "Kernel %s is no copy of the template %s, and runs its recipe before its first cell: %s.",
            self.kernel_id,
            self.template,
            started.rstrip("."),
        )
        return None

    def _load_connection(self, saved: dict[str, Any]) -> None:
        """Connect the manager to the ports on which the kernel listens already."""
        manager = self._manager
        # Ports that are already set would not be replaced by the saved ones.
        self._ports.give_back()
        manager.load_connection_info(cast("KernelConnectionInfo", saved))
        manager.write_connection_file()
        self.connection_info = manager.get_connection_info()
        if manager.cache_ports:
            self._ports.note()
            self.ports_cached = True

    @property
    def _manager(self) -> KernelManager:
        return cast("KernelManager", self.parent)

    def _owner_here(self) -> KernelOwner:
        """Return the batch run's or the server's owner where there is one, else one for this process."""
        if self._owner is None:
            # The manager's parent is the multi kernel manager of a server; scripts have none.
            of_server = getattr(getattr(self.parent, "parent", None), "gpuckpt_owner", None)
            of_run = getattr(self.parent, "gpuckpt_owner", None)
            self._owner = of_run or of_server or ScriptOwner(GpuCkptDaemon(parent=self).settings())
        return self._owner

    def _notice(self, error: GpuCkptError) -> None:
        if GpuCkptProvisioner._notice_given or self._owner_here().notice_given:
            return
        GpuCkptProvisioner._notice_given = True
        self.log.warning(
            "Kernels start without jupyter-gpuckpt and cannot be saved: %s %s",
            error.message,
            error.hint,
        )

    # ---- the daemon's records ----------------------------------------------------------------------------------------

    @property
    def incarnation(self) -> str:
        """Return an id that distinguishes this start of the kernel from earlier ones: the path of its exit file."""
        return self.kernel.exit_path if self.kernel is not None else ""

    def _began(self, kernel: Kernel) -> None:
        self._position = kernel.position
        self.note(kernel)

    def note(self, kernel: Kernel) -> None:
        """Apply the daemon's record of this kernel, unless a newer one is known. Called from any thread."""
        if self._position is None or kernel.position < self._position:
            return
        self._position, self.kernel = kernel.position, kernel
        if kernel.pid != self.pid:
            self._began_at = start_time(kernel.pid) if kernel.pid else None
        self.pid = self.pgid = kernel.pid or None

    def note_gone(self, position: Position) -> None:
        """Record that the kernel was gone at this position of the daemon's stream, unless that concerns an earlier start of it."""
        if self._position is not None and position >= self._position:
            self._note_end()

    def _note_end(self) -> None:
        """Store the exit code of a kernel that has ended: the recorded one, else that of a killed kernel."""
        if self.kernel is not None and self._ended is None:
            code = exit_code(self.kernel.exit_path)
            self._ended = KILLED if code is None else code

    def described_manager(self) -> dict[str, Any]:
        """Return the description for a later server's manager, without its secrets, which the daemon has already."""
        return manager_secrets.parted(saved_manager(self._manager))[0]

    # ---- liveness ----------------------------------------------------------------------------------------------------

    @property
    def has_process(self) -> bool:
        """Return whether the kernel exists, also while it is suspended."""
        return self.kernel is not None or super().has_process

    async def poll(self) -> int | None:
        """Return the exit code, None while the kernel runs, is suspended or lost. It is read from the exit file, without the daemon.

        It is also None while the daemon cannot be reached, and after an end that was not recorded: Jupyter would restart the kernel,
        and an empty one would replace work that may come back.
        """
        if self.kernel is None:
            return await super().poll()
        # The exit file of a suspended or lost kernel does not mean that the kernel has ended.
        if self._ended is None and self.kernel.state not in ABSENT:
            self._ended = exit_code(self.kernel.exit_path)
        return self._ended

    async def wait(self) -> int | None:
        """Wait until the kernel has ended; then `has_process` is False."""
        if self.kernel is None:
            return await super().wait()
        while (code := await self.poll()) is None:  # noqa: ASYNC110 - only a file shows the end
            await asyncio.sleep(0.1)
        self.kernel = None
        return code

    # ---- signals and the end -----------------------------------------------------------------------------------------

    async def send_signal(self, signum: int) -> None:
        """Send a signal to the kernel's process group; the daemon delivers it when an operation in flight is over."""
        if self.kernel is None:
            await super().send_signal(signum)
            return
        runs = self.kernel.state is KernelState.RUNNING
        # Jupyter kills a kernel that is being shut down in a moment, so this need not wait for an operation on it.
        if self._shutting_down and not runs:
            return
        if not (runs and signum == signal.SIGINT and self._interrupted()):
            await self._ask(lambda client: client.send(calls.signal(self.kernel_id, signum)))

    def _interrupted(self) -> bool:
        """Interrupt the process group directly, which works without a daemon, too; return whether that was possible."""
        # The kernel is not a child of this process, so another process may have its pid by now.
        if not self.pid or self._began_at is None or start_time(self.pid) != self._began_at:
            return False
        with suppress(OSError):
            if (group := os.getpgid(self.pid)) != os.getpgrp():
                os.killpg(group, signal.SIGINT)
                return True
        return False

    async def kill(self, restart: bool = False) -> None:
        """End the kernel and everything it started, in whatever state it is; also forgets a suspended one."""
        if self.kernel is None:
            await super().kill(restart=restart)
        else:
            await self._end()

    async def terminate(self, restart: bool = False) -> None:
        """Ask the kernel to end; one that does not run is killed."""
        if self.kernel is None:
            await super().terminate(restart=restart)
        elif self.kernel.state is KernelState.RUNNING:
            await self._ask(
                lambda client: client.send(calls.signal(self.kernel_id, signal.SIGTERM))
            )
        else:
            await self._end()

    async def shutdown_requested(self, restart: bool = False) -> None:
        """End a kernel that cannot answer the shutdown request, so that Jupyter does not wait for it."""
        runs = {KernelState.RUNNING, KernelState.SAVING, KernelState.STARTING}
        if self.kernel is not None and self.kernel.state not in runs:
            await self._end()

    async def cleanup(self, restart: bool = False) -> None:
        """Release the resources of the kernel, except its ports if it is restarted."""
        if self._owner is not None:
            if self.kernel is not None or self._ended is not None:
                await self._end()
            if not restart:
                self._ports.remove_sockets()
                await _in_thread(lambda: self._owner_here().detach(self.kernel_id))
        self.kernel = self._position = None
        self._ports.release()
        await super().cleanup(restart=restart)

    def set_aside(self) -> None:
        """Forget the kernel's process, which the daemon keeps, so that the next launch starts another one."""
        self.kernel = self._ended = self._position = None

    def come_back(self, kernel: Kernel) -> None:
        """Take over a process that was set aside, in place of the one since."""
        self._ended = None
        self._began(kernel)

    def release(self) -> None:
        """Hand the kernel over, in whatever state it is, to the daemon and a later server."""
        if self._owner is not None:
            self._owner.detach(self.kernel_id)
        self._ports.release()
        self.kernel = None

    async def _end(self) -> None:
        """Make the daemon end and forget the kernel."""
        if not await self._ask(lambda client: client.send(calls.kill(self.kernel_id))):
            self._owner_here().end_later(self.kernel_id)
        self._note_end()

    async def _ask(self, request: Callable[[Client], object]) -> bool:
        """Send the daemon a request, which has no effect on a kernel that has just ended; return whether it arrived. Never raises."""
        owner = self._owner_here()
        try:
            await _in_thread(lambda: request(owner.client()))
        except KernelNotFound:
            self.log.debug("kernel %s is gone already", self.kernel_id)
        except GpuCkptError as error:
            self.log.warning("kernel %s: %s %s", self.kernel_id, error.message, error.hint)
            return not isinstance(error, DaemonUnavailable)
        return True

    @property
    def _shutting_down(self) -> bool:
        return bool(getattr(self.parent, "shutting_down", False))


async def _in_thread(function: Callable[[], _T]) -> _T:
    """Run a blocking function in a thread."""
    try:
        return await asyncio.to_thread(function)
    except RuntimeError as error:
        # Notebook runners shut kernels down from atexit, when Python no longer starts threads.
        if "shutdown" not in str(error):
            raise
        return function()
