"""Use cases on snapshots: save, suspend, resume."""
