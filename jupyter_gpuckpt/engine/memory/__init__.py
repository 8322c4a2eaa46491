"""The private memory of a tree: read while the tree stands still or runs on, and filled for a restore."""
