"""This machine: its processes, its resources, what it permits. The package does not depend on Jupyter or snapshots."""
