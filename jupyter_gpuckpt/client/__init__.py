"""Clients of gpuckptd: `Client` for synchronous callers, `AsyncClient` for callers on an event loop.

The classes are imported at their first use, because importing httpx takes a tenth of a second, and many users of this package need a
setting or a record only.

- `agent_code`: the code that installs the agent.
- `agent_messages`: messages to the agent of a kernel without a server.
- `async_client`: the client for callers on an event loop.
- `cell_output`: the output of code that a program runs in a kernel.
- `connection_files`: the connection file of a kernel.
- `daemon_traits`: the daemon's settings as traits.
- `holding`: an owner, and its connection.
- `kernel_runs`: code that a program without a server runs in a kernel.
- `kernel_variables`: the variables of a kernel now, for callers without an event loop and without a server.
- `left_kernels`: the kernel that an owner has left for a notebook.
- `magics`: the magic `%gpuckpt`, for front ends without this package's extension.
- `mirror`: a mirror of the daemon's state, built from its ordered stream.
- `moving`: the steps of a move.
- `programs`: programs of this package that the client runs in processes of their own, without a daemon.
- `quick_httpx`: an import of httpx without its command line.
- `recipes`: the cells of a notebook, or a script, that prepare a kernel.
- `relayed_kernelspecs`: kernelspecs whose kernels outlive their editor.
- `reviving`: kernels that come back, also those that are created from a snapshot.
- `save_costs`: the cost of periodic saves, and how often they are made.
- `silence`: a daemon that runs but does not answer.
- `socket_folders`: the folders of kernels whose clients reach them through unix sockets.
- `starting`: finding the daemon of this place, and starting it if it does not run.
- `sync_client`: the client for callers without an event loop.
- `templates`: the templates of this user on disk.
- `transport`: HTTP calls over the daemon's unix socket by httpx.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .async_client import AsyncClient
    from .holding import Hold, this_owner
    from .sync_client import Client

__all__ = ["AsyncClient", "Client", "Hold", "this_owner"]

_MODULES = {
    "AsyncClient": "async_client",
    "Client": "sync_client",
    "Hold": "holding",
    "this_owner": "holding",
}


def __getattr__(name: str) -> object:
    """Import a class at its first use."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(f".{_MODULES[name]}", __name__), name)
    return found
