"""This machine's processes, resources and permissions. The package does not depend on Jupyter or snapshots."""
