"""The GPU memory of a tree, which the CUDA driver checkpoints and restores."""
