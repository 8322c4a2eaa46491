"""This machine's processes, resources and permissions. The package does not depend on Jupyter or snapshots.

- `attempts`: a program that tries the system calls of a save on one process, and prints the results as JSON.
- `commands`: the only module that runs other programs.
- `connections`: the TCP connections of a process tree.
- `core_files`: prevention of core files of the daemon.
- `criu_program`: the choice of the CRIU program.
- `doctor_checks`: the checks of this machine that the doctor runs.
- `doctor_remedies`: the causes of a failed trial of the engine on this machine.
- `ended_connections`: TCP connections that no program has open any more, but that keep a port for a minute.
- `file_digests`: digests of programs and libraries.
- `file_outlines`: outlines of files.
- `fuse`: file systems in user space.
- `gpu`: the GPUs of this machine.
- `idle_priority`: the lowest priority for this process.
- `limits`: limits of this machine that decide how large a kernel may be.
- `machine_profile`: the properties of this machine on which a snapshot depends.
- `memory_limits`: the limits of memory that the control groups above this process set.
- `memory_use`: the use of memory of this machine and of the control groups above this process.
- `overcommit`: how much memory Linux lets programs reserve.
- `own_programs`: programs of this package that a process starts for itself.
- `pagemap_scan`: PAGEMAP_SCAN (Linux 6.7).
- `privileges`: the rights of this process.
- `processes`: facts about processes, read from /proc.
- `seccomp`: seccomp filters of processes.
- `tcp_table`: the TCP sockets of a process's network namespace.
- `trial_memory`: the memory of trials on this machine.
"""
