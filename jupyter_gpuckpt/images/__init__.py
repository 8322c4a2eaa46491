"""From bytes in memory and files to chunks in a store, and back."""
