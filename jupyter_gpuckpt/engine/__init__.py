"""Operations on one process tree: launch, freeze, thaw, park. Only this package uses CRIU, ptrace and CUDA's checkpoints.

- `capture`: files that CRIU does not save.
- `content`: what a thaw needs of a snapshot's bytes.
- `freeze`: the freeze of a process tree.
- `gpu_files`: the files with GPU memory that a thaw writes while CRIU restores the rest.
- `kept_file_copies`: copies of the files that travel with a snapshot.
- `park`: parking and unparking.
- `placing`: placement of captured files where a restore needs them.
- `preflight`: checks before a save changes anything.
- `recovery`: recovery of a tree from a freeze that was interrupted when the daemon was killed.
- `settings`: the engine's settings.
- `thaw`: the thaw of a frozen process tree.
"""
