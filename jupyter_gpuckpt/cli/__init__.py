"""The command `jupyter gpuckpt`: speaks to the daemon and prints what it says."""
