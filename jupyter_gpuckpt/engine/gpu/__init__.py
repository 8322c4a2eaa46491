"""The GPU memory of a tree: checkpointed and restored by the CUDA driver."""
