"""Execution of system calls in threads of other processes, by ptrace."""
