"""This server's kernels: Jupyter's managers, the daemon, the agent, and the operations on kernels.

- `adoption`: adoption of the kernels of earlier servers, under the same kernel and session ids.
- `agent_calls`: calls to the agent in a kernel.
- `branching`: kernels that are made from a snapshot: branches, and those that ended or come from another machine.
- `daemon_link`: this server as an owner of kernels.
- `descriptions`: descriptions of kernels.
- `kernel_list`: the kernels of this server as REST and events show them.
- `kernel_listener`: the interface by which parts of the server are notified of changes of its kernels.
- `kernel_manager`: a mixin for the server's kernel manager.
- `kernel_operations`: the server's part of save, suspend and resume, around the daemon's operations.
- `notebook_sessions`: Jupyter's sessions.
- `peer_access_hold`: peer access between a kernel's GPUs, switched off by its agent while their memory is away.
- `reconnector`: connecting the server to a kernel after its launch and after a resume.
- `rollbacks`: a kernel is resumed from one of its older snapshots.
- `session_moves`: a kernel is suspended and uploaded to a remote.
- `stored_notebooks`: the notebook in a snapshot, validated and without any trust that the snapshot itself claims.
- `template_builders`: templates as pages see them, and builds that this server has begun.
- `tracked_operations`: operations as clients of this server see them.
- `variables`: the variables of a kernel now.
"""
