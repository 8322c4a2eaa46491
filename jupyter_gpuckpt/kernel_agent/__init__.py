"""What runs inside kernels: a few files, sent over the control channel. Nothing of it is imported outside, nor installed inside."""
