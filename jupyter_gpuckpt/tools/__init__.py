"""Tools for programs that drive notebooks, for instance AI agents: save, look, try in branches, go back.

They are plain functions. Where a Jupyter server has the kernel they go through its REST interface and its websockets, so that its gate,
pages and notebooks know; kernels without a server are reached by `AsyncSessions`.

- `backing`: what the tools need of the kernels' owner, and the records that they get.
- `backings`: the backings that are there now, of Jupyter servers and of the daemon.
- `daemon_backing`: kernels without a server.
- `in_server`: the tools as functions for jupyter-server-mcp, and who may call them.
- `mcp_stdio`: the tools over MCP by standard input and output: `jupyter gpuckpt mcp`.
- `rest_backing`: kernels of a Jupyter server.
- `running_servers`: the Jupyter servers of this user.
- `tool_functions`: the tools.
- `tool_progress`: where a tool tells how far it is.
"""
