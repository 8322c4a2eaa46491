"""Notebooks that run without a server and survive their runner: `jupyter gpuckpt execute`, papermill's engine, the scheduler's manager."""
