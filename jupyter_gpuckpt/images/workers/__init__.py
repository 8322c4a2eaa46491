"""Work on chunks shared out to threads, and to processes where threads only wait for each other (Python's lock)."""
