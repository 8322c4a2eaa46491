"""Many kernels before a deadline: the batch, the order of its kernels, the rates of saves.

- `save_rates`: the rates of earlier saves on this machine.
- `suspend_batch`: suspends of many kernels before a deadline.
- `triage`: the order in which to save kernels if there may not be time for all.
"""
