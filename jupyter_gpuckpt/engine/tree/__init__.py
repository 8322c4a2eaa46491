"""A running process tree: its init (init.c), its namespaces, what it finds in them, and how it is held still."""
