"""The one client of gpuckptd, for every door: `Client` for synchronous callers, `AsyncClient` for asynchronous ones."""

from .async_client import AsyncClient
from .holding import Hold
from .ownership import this_owner
from .sync_client import Client

__all__ = ["AsyncClient", "Client", "Hold", "this_owner"]
