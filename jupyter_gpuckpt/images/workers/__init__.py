"""Distribution of work on chunks to threads, and to processes where threads would only wait for the GIL."""
