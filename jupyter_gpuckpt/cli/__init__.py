"""The command line `jupyter gpuckpt`, a client of the daemon."""
