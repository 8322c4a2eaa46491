"""Operations on one process tree: launch, freeze, thaw, park. Only this package uses CRIU, ptrace and CUDA's checkpoints."""
