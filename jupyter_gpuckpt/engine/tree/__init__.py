"""A running process tree: its init (init.c), its namespaces and the files in them, and stopping all of its tasks."""
