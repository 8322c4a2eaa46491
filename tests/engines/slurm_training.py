"""A notebook that trains in a Slurm job and is preempted again and again; used by the test and by `make demo-slurm`."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import nbformat
from nbclient import NotebookClient

from jupyter_gpuckpt.cli import slurm_script
from tests.conftest import wait_for
from tests.engines.slurm_cluster import SlurmCluster
from tests.headless.running import outputs, write_notebook

STEPS, PAUSE = 300, 0.05
#: The last step waits for this file, so that the training does not end before everything has happened to it.
GATE = "may-end"
CELLS = [
    """import time
from pathlib import Path
import numpy as np

random = np.random.default_rng(7)
inputs = random.standard_normal((400, 30))
targets = inputs @ random.standard_normal(30) + random.standard_normal(400)
weights = random.standard_normal(30)""",
    f"""for step in range({STEPS}):
    batch = random.permutation(400)[:40]
    error = inputs[batch] @ weights - targets[batch]
    weights -= 0.01 * (inputs[batch].T @ error) / 40
    print("step", step, "loss", float(error @ error).hex(), flush=True)
    time.sleep({PAUSE})
    while step == {STEPS - 2} and not Path("{GATE}").exists():
        time.sleep(0.01)""",
    "print([weight.hex() for weight in weights.tolist()])",
]


def undisturbed(folder: Path) -> list[list[str]]:
    """Execute the notebook by nbclient, without Slurm and without the engine; return the outputs."""
    folder.mkdir(parents=True)
    (folder / GATE).touch()
    path = write_notebook(folder / "training.ipynb", CELLS)
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, resources={"metadata": {"path": str(folder)}}).execute(
        stderr=subprocess.DEVNULL
    )
    nbformat.write(notebook, path)
    return outputs(path)


#: The commands of jobs; the notebook and the output are filled in.
EXECUTE = "jupyter gpuckpt execute {} -o {}"
PAPERMILL = "papermill --engine gpuckpt --autosave-cell-every 1 {} {}"


class Training:
    """The notebook in a folder, which all nodes see, and its job."""

    def __init__(
        self, cluster: SlurmCluster, folder: Path, last_cell: str = CELLS[-1], job_id: str = ""
    ) -> None:
        self.cluster, self.folder = cluster, folder
        folder.mkdir(parents=True)
        os.chown(folder, cluster.user.pw_uid, cluster.user.pw_gid)
        write_notebook(folder / "training.ipynb", [*CELLS[:-1], last_cell])
        self.output, self.log = folder / "done.ipynb", folder / "job.log"
        self.script = folder / "slurm-job.sh"
        self.script.write_text(slurm_script.script())
        self.job_id = job_id

    def submit(self, *options: str, autosave: str = "", command: str = EXECUTE) -> str:
        """Submit the job; return its id."""
        execute = command.format("training.ipynb", self.output.name).split()
        execute += ["--lose-at-most", autosave] * bool(autosave)
        place = [f"--chdir={self.folder}", f"--output={self.log}", "--partition=low"]
        self.job_id = self.cluster.submit(*place, *options, str(self.script), *execute)
        return self.job_id

    def steps(self) -> int:
        """Return how many steps the notebook on disk shows."""
        with suppress(OSError, ValueError):
            return str(outputs(self.output)[1]).count("step ")
        return 0

    def wait_for_steps(self, more: int) -> int:
        """Wait until the notebook on disk shows so many steps more than now, or all before the gate; return how many."""
        wanted = min(self.steps() + more, STEPS - 2)

        def has_come() -> bool:
            assert self.cluster.job(self.job_id)["JobState"] != "FAILED", self.said()
            return self.steps() >= wanted

        wait_for(has_come, 180, self.said)
        return self.steps()

    def node(self) -> str:
        """Wait until the job runs; return its node."""
        self.cluster.wait_for_state(self.job_id, "RUNNING")
        return self.cluster.job(self.job_id)["NodeList"]

    @contextmanager
    def preempting(self) -> Iterator[None]:
        """Submit a job with priority for the present node, which it has, or waits for, during the block."""
        other = self.cluster.submit(
            "--partition=high",
            f"--nodelist={self.node()}",
            "--exclusive",
            "--output=/dev/null",
            "--wrap=exec sleep infinity",
        )
        yield
        self.cluster("scancel", other)
        self.cluster.wait_for_state(other, "CANCELLED")

    @contextmanager
    def preempted(self) -> Iterator[str]:
        """Preempt the job, wait until it runs on the other node, and yield that; the first node is taken during the block."""
        node, restarts = self.node(), self.restarts()
        with self.preempting():
            wait_for(lambda: self.restarts() > restarts, 180, self.said)
            now = self.node()
            assert now != node, self.said()
            yield now

    def restarts(self) -> int:
        """Return how often Slurm has started the job again."""
        return int(self.cluster.job(self.job_id)["Restarts"])

    def finish(self) -> list[list[str]]:
        """Let the training end, wait for the job's end, and return the outputs."""
        (self.folder / GATE).touch()
        self.cluster.wait_for_state(self.job_id, "COMPLETED")
        return outputs(self.output)

    def said(self) -> str:
        """Return what the job and Slurm have said."""
        said = self.log.read_text(errors="replace") if self.log.exists() else ""
        return f"{said}\n{self.cluster.job(self.job_id)}\n{self.cluster.log()}"
