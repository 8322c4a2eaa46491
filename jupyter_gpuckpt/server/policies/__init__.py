"""The server's automatic actions on kernels, one class for each policy.

- `agent_saves`: saves before the cells of AI agents.
- `autosave`: periodic saves of the kernels that have changed since their last snapshot.
- `gpu_room`: resumes and unparks that make room on the GPU by parking idle kernels of this server, the least recently used first.
- `idle`: suspends of idle kernels where Jupyter would cull them.
- `memory_room`: suspends of idle kernels while memory is short.
- `parking`: after a while without a cell a kernel's GPU memory moves to RAM, and back for the next cell.
- `ready_kernels`: copies of templates' kernels that wait for the next notebook.
- `reclaim`: notices that this machine will go.
- `restarts`: restarts that can be undone.
- `server_stop`: the stop of the server.
- `shut_downs`: shutdowns that can be undone.
- `suspend_all`: suspends of many kernels within a deadline.
- `user_requests`: requests of the magic `%gpuckpt` in kernels.
- `waking`: a suspended or parked kernel is resumed for a new cell, or for an interrupt of the cell in which it was suspended.
"""
