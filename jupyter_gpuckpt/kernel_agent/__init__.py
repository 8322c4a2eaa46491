"""The code that runs inside kernels: a few files, sent over the control channel; neither imported outside nor installed inside."""
