"""The private memory of a tree: reading it while the tree is stopped or runs on, and filling it in a restore."""
