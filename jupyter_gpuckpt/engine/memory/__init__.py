"""The private memory of a tree: it is read while the tree is stopped or runs on, and filled in a restore."""
