"""The private memory of a tree: it is read while the tree is stopped or runs on, and filled in a restore.

- `filling`: the filling of a restored tree's private pages.
- `ghost`: a stopped copy-on-write twin of a process, whose memory can be read while the process itself runs on.
- `page_plan`: the plan for the private pages of a tree.
- `process_vm`: the system calls that copy between the memory of this process and another one.
- `reader`: a reader of the private memory of a stopped process or of its ghost.
- `reservations`: the memory that a restore reserves.
- `stopped_pages`: a sink that writes private pages into tasks that CRIU holds.
- `tracked_kernels`: what the daemon knows of the writes of its kernels between two saves.
- `write_tracking`: tracking of the writes of a process to its memory.
"""
