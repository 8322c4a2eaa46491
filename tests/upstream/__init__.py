"""The test suites of Jupyter itself, run with our provisioner and our extension: `make upstream`."""
