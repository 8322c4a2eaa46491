"""The private memory of a tree: read while it stands still or runs on, and filled again for a restore."""
