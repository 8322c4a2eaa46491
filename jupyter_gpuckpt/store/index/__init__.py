"""The index of a store: which chunks are in which pack, and where. It can be rebuilt from the packs."""
