"""Notices that this machine will go: their sources, one module each, and what the daemon does about them."""
