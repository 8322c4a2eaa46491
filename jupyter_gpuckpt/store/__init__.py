"""Where snapshots are kept: packs of chunks, manifests, a catalog."""
