"""The code that runs inside kernels: a few files, sent over the control channel; neither imported outside nor installed inside.

- `addresses`: sending through a ROUTER socket to the peer that sent a request, even if that peer has reconnected since.
- `agent`: the agent in an ipykernel.
- `control_calls`: calls of functions from the control thread.
- `cuda_peer_access`: peer access between the GPUs of this process, switched off while the driver moves their memory, and on again.
- `environment`: updating a resumed kernel to its new server.
- `fresh_secrets`: new secrets in a resumed kernel.
- `global_generators`: new generators of random numbers for statistics, in a kernel that begins with the variables of another one.
- `history`: IPython's history after a resume.
- `message_journal`: the journal of a batch run.
- `new_kernels`: a copy of a template's kernel that becomes a kernel of its own.
- `processor_clocks`: Python's clocks of CPU time.
- `recipe_ends`: what a recipe has left in a kernel.
- `recipe_start`: what an ordinary kernel of a template's kernelspec executes at its start.
- `resumes`: how a process notices that it was resumed.
- `sent_messages`: the kernel's last messages.
- `subscribers`: the clients that are subscribed to the kernel's output, and whether all of them are back after a resume.
- `trim`: freeing unused memory of this process before a snapshot is taken of it.
"""
