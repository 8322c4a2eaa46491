"""The server's automatic actions on kernels, one class for each policy."""
