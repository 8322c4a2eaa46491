"""The GPU memory of a tree, which the CUDA driver checkpoints and restores.

- `gpu_processes`: the GPU part of a freeze.
- `gpu_refusals`: refusals of CUDA processes that the driver cannot checkpoint, or could checkpoint but not restore.
- `placement`: the choice of GPUs to which memory is restored.
- `restore`: the restore of the GPU memory of a resumed tree.
"""
