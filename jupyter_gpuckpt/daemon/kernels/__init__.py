"""Kernels in the daemon: their records, owners, operations and streams of events.

- `endings`: shutdowns that can be undone for a while.
- `ferry_choice`: whether kernels that are started load the ferry library.
- `former`: former processes.
- `jobs`: the jobs of the operations.
- `kernel_records`: the records of kernels on disk.
- `kernels`: the kernels that this daemon manages.
- `lost_notebooks`: the notebooks whose session another machine has taken over.
- `machine`: engine, store and host with the daemon's settings.
- `measuring`: measurement of kernels' use of memory and GPUs.
- `operations`: work on a kernel that has an id, continues when its client disconnects, and can be followed and canceled.
- `owners`: owners of kernels: their connections, and claims by new servers.
- `ready_copies`: upkeep of the copies of templates' kernels that servers want to have waiting.
- `ready_trees`: the process trees of those copies.
- `record_leases`: the leases of kernels in a data directory that several hosts may share.
- `recovered`: the interpretation of a kernel's record after the death of the daemon that wrote it, or after an operation that failed.
- `resume_times`: durations of resumes on this machine.
- `stopped_trees`: process trees that stand still for longer than an operation.
- `streams`: ordered streams of events.
- `taken_over`: what users are told when another machine has taken a kernel's session over.
- `tree_records`: a copy of each kernel's record on the scratch of its own tree.
- `usage`: a process tree's use of RAM and GPUs.
- `verbs`: the verbs that clients request: launch, save, suspend, resume ....
- `whole_files`: small files of the daemon that are replaced as a whole.
- `working_folders`: the working folders of kernels, and those that branches have for themselves.
"""
