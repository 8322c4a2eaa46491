"""TCP connections with both ends in a tree: recorded for a snapshot, recreated for a resume."""
