"""A running process tree: its init (init.c), its namespaces and the files in them, and the standstill of all its tasks."""
