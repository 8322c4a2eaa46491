"""TCP connections with both ends in a tree, which are recorded for a snapshot and recreated for a resume."""
