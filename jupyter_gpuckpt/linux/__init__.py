"""Facilities of Linux that the daemon and its clients both use, one a module."""
