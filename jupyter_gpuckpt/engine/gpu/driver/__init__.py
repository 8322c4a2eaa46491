"""The CUDA driver: its checkpoint functions, and the files that replace its staging memory.

- `cuda`: the CUDA driver's checkpoint functions.
- `digests`: digests of GPU memory.
- `gpu_staging`: staging of GPU memory in files.
- `release`: release of inherited GPU descriptors and mappings in a child that a CUDA process forked.
"""
