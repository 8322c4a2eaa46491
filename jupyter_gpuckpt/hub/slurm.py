"""The spawner for servers that are jobs of Slurm."""
# batchspawner carries no types:
# mypy: allow-untyped-calls

from __future__ import annotations

import asyncio
import re
import time

from batchspawner import JobStatus, SlurmSpawner

from .spawner import GpuCkptSpawnerMixin

#: An option by which Slurm signals a job that will reach its time limit: [{R|B}:]SIGNAL[@SECONDS]; 60 s without a number.
_SIGNAL = re.compile(r"--signal[= ](?:[RB]+:)?\w+(?:@(\d+))?")
_DEFAULT_SIGNAL_SECONDS = 60
_POLL_SECONDS = 1.0


class GpuCkptSlurmSpawner(GpuCkptSpawnerMixin, SlurmSpawner):  # type: ignore[misc]
    """SlurmSpawner that waits for the end of a canceled job, and gives servers time before the job's time limit.

    The time between the signal of `scancel` and the kill is KillWait in slurm.conf. The hub has its kernels suspended before.
    """

    req_options: str

    def check_configuration(self) -> None:
        """Refuse a signal that comes later before the time limit than a suspend may take."""
        if found := _SIGNAL.search(self.req_options):
            seconds = int(found[1] or _DEFAULT_SIGNAL_SECONDS)
            self.require_time("--signal in c.SlurmSpawner.req_options", seconds)

    async def start(self) -> object:
        """Submit the job, with a signal before its time limit."""
        if not _SIGNAL.search(self.req_options):
            signal = f"--signal=TERM@{self.stop_seconds}"
            self.req_options = f"{self.req_options} {signal}".strip()
        return await super().start()

    async def stop(self, now: bool = False) -> None:
        """Cancel the job and wait for its end: batchspawner itself waits for 10 s."""
        await super().stop(now)
        deadline = time.monotonic() + self.stop_seconds
        while not now and self.job_id and time.monotonic() < deadline:
            if await self.query_job_status() not in {JobStatus.RUNNING, JobStatus.UNKNOWN}:
                return
            await asyncio.sleep(_POLL_SECONDS)
