"""Conversion of memory and files to chunks in a store, and back."""
