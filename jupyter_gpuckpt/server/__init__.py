"""The server extension: kernels of this Jupyter server that can be saved, suspended and resumed."""
