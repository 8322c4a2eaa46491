"""System calls executed in threads of other processes, by ptrace."""
