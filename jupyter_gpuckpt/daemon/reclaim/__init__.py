"""Notices that this machine will go: their sources, one module each, and the daemon's reaction."""
