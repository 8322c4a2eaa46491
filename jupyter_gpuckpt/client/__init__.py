"""Clients of gpuckptd: `Client` for synchronous callers, `AsyncClient` for callers on an event loop."""

from .async_client import AsyncClient
from .holding import Hold
from .ownership import this_owner
from .sync_client import Client

__all__ = ["AsyncClient", "Client", "Hold", "this_owner"]
