"""One process tree and its frozen form: launch, freeze, thaw. The only package that uses CRIU, ptrace and the CUDA checkpoint API."""
