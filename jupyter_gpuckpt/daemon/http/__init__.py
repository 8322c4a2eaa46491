"""The routes of the daemon, and what they share."""
