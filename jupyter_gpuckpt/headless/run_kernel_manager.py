"""Manager and client of a batch run's kernel, which is started anew or taken over from an earlier runner."""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any, cast

from gpuckpt_provisioner import GpuCkptProvisioner
from gpuckpt_provisioner.agent_installation import answer
from jupyter_client.asynchronous import AsyncKernelClient
from jupyter_client.manager import AsyncKernelManager
from nbclient.exceptions import DeadKernelError

from ..client.agent_code import AGENT_REQUEST, IMPLEMENTATION, installation_request, take_over
from ..errors import ConfigurationError, HostError, KernelError, StoreUnavailable
from ..wire.states import ABSENT, KernelState
from .journal_reader import JournalChannel, JournalReader, Rewound
from .run_owner import BatchOwner
from .runs import Run, RunRecord
from .template_kernelspecs import PROVISIONER

#: The timeouts of the agent's answers, of its installation, of user functions, and of switching off peer access between GPUs.
_ANSWER_SECONDS, _START_SECONDS, _CALLS_SECONDS, _GPU_SECONDS = 5.0, 60.0, 12.0, 42.0
_PAUSE = 0.05
#: The environment variables of a job or pod: a resumed kernel gets those of the present one.
_RENEWED = ("SLURM*", "KUBERNETES_*")


class Stopped(BaseException):
    """The signal that the runner was asked to stop. The kernel is then suspended, and the next runner continues with it."""


class BatchKernelManager(AsyncKernelManager):
    """Manager of a batch run's kernel. The provisioner finds the kernel's owner in the attribute `gpuckpt_owner`."""

    def __init__(self, run: Run, record: RunRecord, owner: BatchOwner, **traits: Any) -> None:  # noqa: ANN401 - as the base
        super().__init__(**traits)
        self.run, self.record, self.gpuckpt_owner = run, record, owner
        self.client_factory = JournalClient
        self._client: JournalClient | None = None
        self.is_stopping = False
        #: Whether the notebook ended with an error that is raised later.
        self.has_failed = False

    async def _async_start_kernel(self, **arguments: Any) -> None:  # noqa: ANN401 - as the base
        """Start the kernel, or connect to the one that the owner has found."""
        spec = self.kernel_spec
        chosen = spec.metadata.get("kernel_provisioner", {}) if spec is not None else {}
        if chosen.get("provisioner_name", PROVISIONER) != PROVISIONER:
            raise ConfigurationError(
                f"Kernels of {self.kernel_name} have a provisioner of their own, so they end with this process.",
                hint="Execute the notebook with another kernel, or with nbclient.",
            )
        self.kernel_id = self.record.kernel_id
        self.provisioner = GpuCkptProvisioner(
            kernel_id=self.kernel_id, kernel_spec=spec, parent=self, **chosen.get("config", {})
        )
        await super()._async_start_kernel(**arguments)
        if self.provisioner.plain_reason:
            reason, hint = self.provisioner.plain_reason, self.provisioner.plain_hint
            await super()._async_shutdown_kernel(now=True)
            raise HostError(reason, hint=hint)
        await asyncio.to_thread(self.gpuckpt_owner.name_kernel)

    start_kernel = _async_start_kernel

    def client(self, **arguments: Any) -> JournalClient:  # type: ignore[override] # noqa: ANN401 - as the base
        """Return a client, which `disconnect` closes."""
        self._client = cast("JournalClient", super().client(**arguments))
        return self._client

    def disconnect(self) -> None:
        """Close the client's connections to the kernel."""
        if self._client is not None and self._client.channels_running:
            self._client.stop_channels()

    def release(self) -> None:
        """Disconnect from the kernel and leave it to the daemon unchanged."""
        self.disconnect()
        if isinstance(self.provisioner, GpuCkptProvisioner):
            self.provisioner.release()


class JournalClient(AsyncKernelClient):
    """Client of a batch run's kernel. Its request ids are the same for every runner, and the kernel's messages come from the journal.

    A kernel without an agent (one of another language) has no journal; with it, this is an ordinary client.
    """

    def __init__(self, **traits: Any) -> None:  # noqa: ANN401 - as the base
        super().__init__(**traits)
        self._reader: JournalReader | None = None
        self._channels: dict[str, JournalChannel] = {}
        self._incarnation = ""
        #: The kernel's clock minus this machine's.
        self._clock_offset = 0.0
        self._executed = 0
        self._one_at_a_time = asyncio.Lock()

    @property
    def shell_channel(self) -> Any:  # noqa: ANN401 - as the base
        """Return the channel of replies."""
        return self._channels.get("shell") or super().shell_channel

    @property
    def iopub_channel(self) -> Any:  # noqa: ANN401 - as the base
        """Return the channel of output."""
        return self._channels.get("iopub") or super().iopub_channel

    async def wait_for_ready(self, timeout: float | None = None) -> None:  # noqa: ASYNC109 - as the base
        """Wait until the kernel can execute cells and, if it is an IPython kernel, writes its journal."""
        if self._manager.record.is_ready:
            await self.rewind()
            return
        await super()._async_wait_for_ready(timeout)
        if await self._install():
            await self.rewind()
            self._manager.record.is_ready = True
            self._manager.run.write(self._manager.record)

    def stop_channels(self) -> None:
        """Stop the channels, and close the journal."""
        self._forget_reader()
        super().stop_channels()

    async def rewind(self) -> None:
        """Wait until the kernel runs and its journal is complete, then start reading the journal from its beginning."""
        if not self._incarnation and not self._manager.record.is_ready:
            self._incarnation = self._provisioner.incarnation
        while True:
            await self._running()
            incarnation = self._provisioner.incarnation
            journal = self._manager.run.journal
            answer = await self.ask("journal", path=str(journal))
            if not answer or incarnation != self._provisioner.incarnation:
                continue
            if answer["trouble"]:
                raise StoreUnavailable(
                    f"The journal of the run cannot be written: {answer['trouble']}",
                    hint=f"The journal is the file {journal}.",
                )
            self._clock_offset = answer["clock"] - time.monotonic()
            if incarnation != self._incarnation:
                await self._resumed()
            self._incarnation, self._executed = incarnation, 0
            self._forget_reader()
            self._reader = reader = JournalReader(journal, answer["count"])
            self._channels = {
                "shell": JournalChannel("shell", super().shell_channel, reader, self._check),
                "iopub": JournalChannel("iopub", super().iopub_channel, reader, self._check),
            }
            return

    def execute(
        self,
        code: str,
        silent: bool = False,
        store_history: bool = True,
        user_expressions: dict[str, Any] | None = None,
        allow_stdin: bool | None = None,
        stop_on_error: bool = True,
    ) -> str:
        """Send an execute request, unless an earlier runner has sent it; return its id."""
        content = {
            "code": code,
            "silent": silent,
            "store_history": store_history,
            "user_expressions": user_expressions or {},
            "allow_stdin": bool(allow_stdin),
            "stop_on_error": stop_on_error,
        }
        self._executed += 1
        request_id = self._manager.record.request_id(self._executed)
        return self._send("execute_request", content, request_id)

    def kernel_info(self) -> str:
        """Ask for the kernel's description once in a run: a busy kernel would not answer the next runner."""
        return self._send("kernel_info_request", {}, self._manager.record.request_id(0))

    async def ask(
        self,
        op: str,
        *,
        seconds: float = _ANSWER_SECONDS,
        **arguments: Any,  # noqa: ANN401 - parts of a message
    ) -> dict[str, Any]:
        """Send the agent a request; return the content of its reply, empty if it does not answer in time."""
        return await self._control(AGENT_REQUEST, {"op": op, **arguments}, seconds)

    async def prepare_save(self) -> bool:
        """Call the user's functions for `on_save`; return whether peer access between GPUs is off, as a save of several GPUs requires."""
        await self._call_functions("on_save")
        answer = await self.ask("peers_off", seconds=_GPU_SECONDS)
        return answer.get("peer_access") == "off"

    async def _resumed(self) -> None:
        kernel = self._provisioner.kernel
        moved = kernel.moved_ports if kernel is not None else {}
        await self.ask(
            "resumed",
            **take_over(os.environ, _RENEWED, moved),
            connection_file=str(self._manager.connection_file),
            branched=False,
            gpu_is_back=True,
        )
        await self._call_functions("on_resume")

    async def _call_functions(self, event: str) -> None:
        if (await self.ask("count")).get(event):
            await self.ask(event, seconds=_CALLS_SECONDS)

    @property
    def _manager(self) -> BatchKernelManager:
        return cast("BatchKernelManager", self.parent)

    @property
    def _provisioner(self) -> GpuCkptProvisioner:
        return cast("GpuCkptProvisioner", self._manager.provisioner)

    async def _install(self) -> bool:
        info = await self._async_recv_reply(super().kernel_info(), timeout=_START_SECONDS)
        if info["content"].get("implementation") != IMPLEMENTATION:
            return False
        reply = await self._control("execute_request", installation_request(), _START_SECONDS)
        if reply.get("status") != "ok":
            raise KernelError(
                "The kernel cannot keep a journal of its run.",
                hint="Its version of ipykernel may be too old: 6.29 and newer ones can.",
                details=str(reply.get("evalue", "It did not answer.")),
            )
        return True

    async def _control(self, kind: str, content: dict[str, Any], seconds: float) -> dict[str, Any]:
        async with self._one_at_a_time:
            return await answer(self, kind, content, seconds)

    async def _running(self) -> None:
        """Wait until the kernel runs; resume a lost one from its last snapshot. Raises DeadKernelError if it has ended, and Stopped."""
        while True:
            self._raise_if_stopping()
            kernel = self._provisioner.kernel
            if not await self._async_is_alive() or kernel is None:
                raise DeadKernelError("Kernel died")
            if kernel.state is KernelState.RUNNING or kernel.state is KernelState.SAVING:
                return
            if kernel.state is KernelState.LOST:
                back = await asyncio.to_thread(self._manager.gpuckpt_owner.bring_back)
                if back is None:
                    raise DeadKernelError("Kernel died")
                self._provisioner.note(back)  # the daemon's event about it may not have come yet
            await asyncio.sleep(_PAUSE)

    def _check(self) -> float | None:
        """Return the kernel's clock in seconds, None while it has no process. Raises Rewound if it was resumed or lost, and Stopped."""
        self._raise_if_stopping()
        kernel = self._provisioner.kernel
        if kernel is not None and kernel.state in ABSENT and kernel.state is not KernelState.LOST:
            return None
        lost = kernel is not None and kernel.state is KernelState.LOST
        if lost or self._provisioner.incarnation != self._incarnation:
            raise Rewound
        return time.monotonic() + self._clock_offset

    def _raise_if_stopping(self) -> None:
        if self._manager.is_stopping:
            raise Stopped

    def _send(self, kind: str, content: dict[str, Any], request_id: str) -> str:
        if self._reader is None:
            request = self.session.msg(kind, content)
            super().shell_channel.send(request)
            return str(request["header"]["msg_id"])
        self._reader.look()
        self._channels["shell"].expect(request_id)
        if request_id not in self._reader.began:
            request = self.session.msg(kind, content)
            request["header"]["msg_id"] = request["msg_id"] = request_id
            super().shell_channel.send(request)
        return request_id

    def _forget_reader(self) -> None:
        self._channels = {}
        if self._reader is not None:
            self._reader.close()
            self._reader = None
