"""CRIU: its command lines, its dumps, its image files, and the library that is preloaded into it (preload.c)."""
