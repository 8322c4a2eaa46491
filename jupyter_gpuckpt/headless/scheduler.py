"""jupyter-scheduler's jobs with kernels that can be saved, suspended and resumed, and outlive the process of the job.

c.Scheduler.execution_manager_class = "jupyter_gpuckpt.headless.scheduler.GpuCkptExecutionManager"
"""

from __future__ import annotations

from pathlib import Path

import nbformat
from jupyter_scheduler.executors import DefaultExecutionManager
from jupyter_scheduler.parameterize import add_parameters

from ..wire import daemon_settings
from .notebook_client import BatchClient
from .preparing import prepared


class GpuCkptExecutionManager(DefaultExecutionManager):  # type: ignore[misc] # jupyter-scheduler has no types
    """An execution manager whose jobs continue after a suspend, and after a kill of their process if they are executed again."""

    def execute(self) -> None:
        """Execute the job's notebook and write its outputs, also after an error of a cell."""
        job = self.model
        path = Path(self.staging_paths["input"])
        notebook = nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]
        if job.parameters:
            notebook = add_parameters(notebook, job.parameters)
        folder = str(path.parent)
        settings = daemon_settings.from_environment()
        try:
            with prepared(notebook, f"job-{job.job_id}", settings) as manager:
                BatchClient(
                    notebook,
                    km=manager,
                    store_widget_state=True,
                    resources={"metadata": {"path": folder}},
                ).execute()
        finally:
            self.add_side_effects_files(folder)
            self.create_output_files(job, notebook)
