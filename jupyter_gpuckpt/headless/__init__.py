"""Notebooks that run without a server and survive their runner: `jupyter gpuckpt execute`, papermill's engine, the scheduler's manager.

- `execute`: the work of `jupyter gpuckpt execute`.
- `journal_reader`: reader of a batch run's journal.
- `notebook_client`: nbclient's notebook client for batch runs.
- `papermill_client`: the implementation of papermill's engine `gpuckpt`, imported at its first use.
- `papermill_engine`: papermill's engine `gpuckpt`.
- `preparing`: the start and the end of a runner's work.
- `run_kernel_manager`: manager and client of a batch run's kernel.
- `run_owner`: the owner of a batch run's kernel.
- `runs`: a batch run on disk.
- `scheduler`: jupyter-scheduler's jobs with kernels that can be saved, suspended and resumed, and outlive the process of the job.
- `template_builds`: building templates.
- `template_kernelspecs`: the kernelspecs of templates.
"""
