"""The commands `jupyter gpuckpt remote` and `move`, one module each."""
