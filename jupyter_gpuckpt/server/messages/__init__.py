"""The messages between pages and a kernel: the gate, output, comms and probes.

- `answers`: answers in a kernel's name to requests that the kernel itself cannot answer now.
- `begun_cells`: the cells that ran in a kernel when another server saved it.
- `client_relay`: the clients that other code in this server makes by `KernelManager.client`.
- `comms`: a kernel's comms as they were when it was saved.
- `gate`: a mixin of the websockets of kernels under the engine.
- `kept_messages`: the messages of a kernel that are kept for pages.
- `kernel_messages`: tolerant readers of iopub messages.
- `output`: a kernel's iopub messages.
- `probe`: requests to a kernel on this server's own sockets.
- `routing_ids`: the routing ids by which a kernel knows the sockets of a page.
- `served_kernel`: the server's view of one kernel under the engine.
"""
