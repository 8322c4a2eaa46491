"""One process tree and its frozen form: launch, freeze, thaw, park. The only package that uses CRIU, ptrace and CUDA's checkpoints."""
