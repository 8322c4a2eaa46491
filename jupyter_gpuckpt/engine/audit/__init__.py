"""The audit of a tree: what Linux shows of its processes before a freeze and after a restore, compared and mended."""
