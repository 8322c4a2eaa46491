"""Clients of gpuckptd: `Client` for synchronous callers, `AsyncClient` for callers on an event loop.

The classes are imported at their first use, because importing httpx takes a tenth of a second, and many users of this package need a
setting or a record only.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .async_client import AsyncClient
    from .holding import Hold
    from .ownership import this_owner
    from .sync_client import Client

__all__ = ["AsyncClient", "Client", "Hold", "this_owner"]

_MODULES = {
    "AsyncClient": "async_client",
    "Client": "sync_client",
    "Hold": "holding",
    "this_owner": "ownership",
}


def __getattr__(name: str) -> object:
    """Import a class at its first use."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(f".{_MODULES[name]}", __name__), name)
    return found
