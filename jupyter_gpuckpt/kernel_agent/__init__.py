"""What runs inside kernels: one file, sent over the control channel. Nothing of it is imported outside, nor installed inside."""
