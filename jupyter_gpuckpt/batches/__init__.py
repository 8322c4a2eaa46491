"""Many kernels before a deadline: the batch, the order of its kernels, the rates of saves."""
