"""TCP connections with both ends in a tree: put on record for a snapshot, made anew for a resume."""
