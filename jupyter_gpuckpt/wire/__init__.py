"""What two processes exchange or store: records, calls, statuses, names of states; no process of its own."""
