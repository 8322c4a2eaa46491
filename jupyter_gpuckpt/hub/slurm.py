"""The spawner for servers that are jobs of Slurm."""
# batchspawner carries no types:
# mypy: allow-untyped-calls

from __future__ import annotations

import asyncio
import re
import time

from batchspawner import JobStatus, SlurmSpawner

from .spawner import GpuCkptSpawnerMixin

#: The option for a signal before a job's time limit: [{R|B}:]SIGNAL[@SECONDS]. Without SECONDS it comes 60 s before.
_SIGNAL = re.compile(r"--signal[= ](?:[RB]+:)?\w+(?:@(\d+))?")
_DEFAULT_SIGNAL_SECONDS = 60
_REQUEUE = re.compile(r"--(no-)?requeue\b")
_POLL_SECONDS = 1.0


class GpuCkptSlurmSpawner(GpuCkptSpawnerMixin, SlurmSpawner):  # type: ignore[misc]
    """SlurmSpawner that waits for the end of a canceled job, and gives servers time before the job's time limit.

    Slurm kills a canceled job KillWait (slurm.conf) after the signal. The server suspends its kernels before the hub cancels the job.
    A preempted job is not requeued: it would come back on another node, to which neither the hub nor its proxy would connect. Its
    server suspends its kernels at the signal, and the next start lists them.
    """

    req_options: str

    def check_configuration(self) -> None:
        """Refuse a signal that comes less time before the time limit than a suspend may take, and warn of jobs that are requeued."""
        if found := _SIGNAL.search(self.req_options):
            seconds = int(found[1] or _DEFAULT_SIGNAL_SECONDS)
            self.require_time("--signal in c.SlurmSpawner.req_options", seconds)
        found = _REQUEUE.search(self.req_options)
        if found and not found[1]:
            self.log.warning(
                "With --requeue in c.SlurmSpawner.req_options a preempted server comes back on another node, where users do not reach it:"
                " the hub connects to the former node. Leave it out: the server's kernels are suspended, and its next start lists them."
            )

    async def start(self) -> object:
        """Submit the job, with a signal before its time limit, and not to be requeued."""
        if not _SIGNAL.search(self.req_options):
            self._add_option(f"--signal=TERM@{self.stop_seconds}")
        if not _REQUEUE.search(self.req_options):
            self._add_option("--no-requeue")
        return await super().start()

    async def stop(self, now: bool = False) -> None:
        """Cancel the job and wait for its end: batchspawner itself waits for 10 s."""
        await super().stop(now)
        deadline = time.monotonic() + self.stop_seconds
        while not now and self.job_id and time.monotonic() < deadline:
            if await self.query_job_status() not in {JobStatus.RUNNING, JobStatus.UNKNOWN}:
                return
            await asyncio.sleep(_POLL_SECONDS)

    def _add_option(self, option: str) -> None:
        self.req_options = f"{self.req_options} {option}".strip()
