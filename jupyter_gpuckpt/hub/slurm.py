"""The spawner for servers that are jobs of Slurm."""
# batchspawner carries no types:
# mypy: allow-untyped-calls

from __future__ import annotations

import asyncio
import re
import time
from typing import Any

from batchspawner import JobStatus, SlurmSpawner

from .spawner import GpuCkptSpawnerMixin

#: The option for a signal before a job's time limit: [{R|B}:]SIGNAL[@SECONDS]. Without SECONDS it comes 60 s before.
_SIGNAL = re.compile(r"--signal[= ](?:[RB]+:)?\w+(?:@(\d+))?")
_DEFAULT_SIGNAL_SECONDS = 60
_REQUEUE = re.compile(r"--(no-)?requeue\b")
#: What batchspawner replaces in a batch script.
_REPLACED = re.compile(r"\{[{%].*?[%}]\}", re.DOTALL)
_SRUN = re.compile(r"(?<![-\w])srun\b")
_POLL_SECONDS = 1.0


class GpuCkptSlurmSpawner(GpuCkptSpawnerMixin, SlurmSpawner):  # type: ignore[misc]
    """SlurmSpawner that waits for the end of a canceled job, and gives servers time before the job's time limit.

    Slurm kills a canceled job KillWait (slurm.conf) after the signal. The server suspends its kernels before the hub cancels the job.
    A job is not requeued unless `req_options` says so: the server of a preempted job suspends its kernels at the signal, and the next
    start lists them. If Slurm starts a job again, on another node, hub and proxy follow it.
    """

    req_options: str
    req_srun: str
    batch_script: str

    def check_configuration(self) -> None:
        """Refuse a signal less time before the time limit than a suspend may take, and warn if no step of the job gets the signal."""
        self._check(self.req_options)
        if not (self.req_srun or _SRUN.search(_REPLACED.sub("", self.batch_script))):
            self.log.warning(
                "c.SlurmSpawner.req_srun is empty, and c.SlurmSpawner.batch_script has no srun: Slurm sends the signal before a time"
                " limit, or at a preemption, to the steps of a job only, and such a job has none. Its server may be killed before its"
                " kernels are suspended. Leave req_srun out."
            )

    async def stop(self, now: bool = False) -> None:
        """Cancel the job and wait for its end: batchspawner itself waits for 10 s."""
        await super().stop(now)
        deadline = time.monotonic() + self.stop_seconds
        while not now and self.job_id and time.monotonic() < deadline:
            if await self.query_job_status() not in {JobStatus.RUNNING, JobStatus.UNKNOWN}:
                return
            await asyncio.sleep(_POLL_SECONDS)

    async def poll(self) -> object:
        """Return the job's end, or None while there is one; let the hub and its proxy connect to the node where it runs now."""
        status: object = await super().poll()
        if status is None:
            try:
                await self._follow()
            except Exception:
                self.log.exception("%s: the job's new address is not known", self._log_name)
        return status

    async def _follow(self) -> None:
        """Renew the hub's record and the proxy's route if Slurm has started the job again and its server has reported another port."""
        server = self.server
        # A hub that was started in the meantime does not know the port of a job that was not started again.
        if server is None or self.pending or not self.port or not self.state_isrunning():
            return
        # On the new node another user's program may have the old port, so the server's own report is awaited.
        host = self.state_gethost()
        if not host or self.port == server.port:
            return
        self.log.info(
            "%s: job %s runs on %s:%d again", self._log_name, self.job_id, host, self.port
        )
        self.ip = server.ip = host
        server.port = self.port
        self.db.commit()
        await self.user.settings["proxy"].add_user(self.user, self.name)

    async def _get_batch_script(self, **subvars: Any) -> str:  # noqa: ANN401 - batchspawner's own
        """Return the base class's script, with a signal before the job's time limit, and not to be requeued."""
        # The setting itself is not changed: the signal's time depends on suspend_timeout, which a profile may change.
        options = str(subvars.get("options") or "")
        self._check(options)
        if not _SIGNAL.search(options):
            options += f" --signal=TERM@{self.stop_seconds}"
        if not _REQUEUE.search(options):
            options += " --no-requeue"
        script: str = await super()._get_batch_script(**{**subvars, "options": options.strip()})
        return script

    def _check(self, options: str) -> None:
        """Refuse a signal that comes too late."""
        if found := _SIGNAL.search(options):
            seconds = int(found[1] or _DEFAULT_SIGNAL_SECONDS)
            self.require_time("--signal in c.SlurmSpawner.req_options", seconds)
