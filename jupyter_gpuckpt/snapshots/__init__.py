"""Use cases of snapshots: save, suspend, resume, export, import, verify."""
