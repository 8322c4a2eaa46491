"""A running process tree: its init (init.c), its namespaces and the files in them, and the standstill of all its tasks.

- `affinity`: the CPUs on which threads may run.
- `duplicates`: duplicates of other processes' descriptors.
- `endless_waits`: system calls without a timeout, restarted after a freeze interrupts them.
- `ferry_library`: loading of the ferry library.
- `fresh_randomness.c`: part of the library that is preloaded into kernels: other random numbers in every copy.
- `fresh_randomness`: new random numbers in every copy of a kernel.
- `init.c`: gpuckpt-init: the two processes above every kernel, CRIU's action script.
- `kept_secrets`: a kernel's secrets on its own scratch tmpfs.
- `landlock`: Landlock sandboxes of a tree's threads.
- `launch`: the start and end of a process tree in its own PID, mount and time namespaces.
- `mounts`: mounts in a kernel's own mount namespace.
- `namespaces.c`: namespaces and capabilities of init.
- `outside_signals.c`: the library in kernels that ignores stop signals from outside.
- `outside_signals`: protection of kernels from signals that are sent to all processes of a service.
- `server_files`: the info files of Jupyter servers.
- `socket_directories`: private directories for the unix sockets of a branch whose original still listens.
- `standstill`: the standstill of a tree.
- `strangers`: programs like CRIU that entered a tree's PID namespace.
- `tree`: the record of a running process tree.
- `user_namespaces`: kernels in a user namespace of their own.
- `user_threads`: the threads of CUDA processes, held while the driver unmaps memory that they may be using.
"""
