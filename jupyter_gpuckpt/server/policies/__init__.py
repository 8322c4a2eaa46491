"""What the server does with kernels by itself, one class for each policy."""
