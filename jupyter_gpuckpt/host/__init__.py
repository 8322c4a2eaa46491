"""This machine: what runs on it, what it has, what it allows. Knows no Jupyter and no snapshots."""
