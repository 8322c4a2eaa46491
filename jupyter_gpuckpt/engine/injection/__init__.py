"""Execution of system calls in threads of other processes, by ptrace.

- `call_tables`: many system calls in one run of a stopped thread.
- `ptrace`: Python bindings of ptrace(2).
- `return_frame`: a signal frame by which a thread that executes injected calls continues unchanged if its tracer dies.
- `task_memory`: reading and writing another task's memory through /proc/TID/mem.
- `threads_held`: a hold on the threads of a process, except those of the CUDA driver and the ferry library.
- `tracee`: injection of system calls into a thread of another process.
- `twins`: copies of a process that clone() makes, injected into it.
"""
