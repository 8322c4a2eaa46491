"""This server's kernels: Jupyter's managers, the daemon, the agent, and the operations on kernels."""
