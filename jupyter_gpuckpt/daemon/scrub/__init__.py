"""The scrub: packs are read again and again, and what is damaged is told and repaired."""
