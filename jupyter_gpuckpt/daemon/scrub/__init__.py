"""The scrub: packs are read again and again, and what is damaged is told and repaired.

- `pack_reader`: the process that reads packs and compares their chunks with their digests, at the lowest priority.
- `scrubbing`: all packs of the store are read once in some days.
"""
