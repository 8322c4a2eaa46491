"""The store of snapshots: packs of chunks, manifests, a catalog."""
