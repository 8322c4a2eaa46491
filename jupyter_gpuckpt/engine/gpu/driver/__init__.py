"""The CUDA driver: its checkpoint functions, and the files that replace its staging memory."""
