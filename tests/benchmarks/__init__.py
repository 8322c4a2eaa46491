"""The budgets, measured: same work, same run, medians and ratios. `make bench`, or `python -m tests.benchmarks NAME ...`."""
