"""Requests over a kernel's control channel, and the installation of the agent in the kernel of a script by them."""

from __future__ import annotations

import asyncio
import time
from queue import Empty
from typing import TYPE_CHECKING, Any

from jupyter_client.asynchronous import AsyncKernelClient

from jupyter_gpuckpt.client.agent_code import IMPLEMENTATION, installation_request

if TYPE_CHECKING:
    from jupyter_client.connect import KernelConnectionInfo

#: How long a new kernel, which imports for a while, has to answer.
_START_SECONDS = 60.0


def install(connection: KernelConnectionInfo) -> None:
    """Wait until a new kernel answers, and run the agent in it if it is an IPython kernel.

    The requests go over a connection of their own and the control channel, which a script's own client does not use before its
    first cell. The calling thread must run no event loop.
    """
    asyncio.run(_install(connection))


async def _install(connection: KernelConnectionInfo) -> None:
    client = AsyncKernelClient()
    client.load_connection_info(connection)
    try:
        info = await answer(client, "kernel_info_request", {}, _START_SECONDS)
        if info.get("implementation") == IMPLEMENTATION:
            await answer(client, "execute_request", installation_request(), _START_SECONDS)
    finally:
        client.stop_channels()
        client.context.destroy(linger=0)


async def answer(
    client: AsyncKernelClient,
    kind: str,
    content: dict[str, Any],
    seconds: float,
    *,
    reply_key: bytes | None = None,
) -> dict[str, Any]:
    """Send a request over the control channel; return the content of its reply, empty if none comes in time.

    Only one caller at a time: it would drop the reply to another. `reply_key`: with which the reply is signed, if not the request's.
    """
    request = client.session.msg(kind, content)
    client.control_channel.send(request)
    if reply_key is not None:
        client.session.key = reply_key
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        try:
            reply = await client.control_channel.get_msg(timeout=left)
        except Empty:
            break
        if reply["parent_header"].get("msg_id") == request["header"]["msg_id"]:
            found: dict[str, Any] = reply["content"]
            return found
    return {}
