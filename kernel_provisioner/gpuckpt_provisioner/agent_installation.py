"""Installation of the agent in the kernel of a script, over a connection of its own."""

from __future__ import annotations

import time
from queue import Empty
from typing import TYPE_CHECKING, Any

from jupyter_client.blocking import BlockingKernelClient

from jupyter_gpuckpt.agent_code import IMPLEMENTATION, installation_request

if TYPE_CHECKING:
    from jupyter_client.connect import KernelConnectionInfo

#: How long a new kernel, which imports for a while, has to answer.
_START_SECONDS = 60.0


def install(connection: KernelConnectionInfo) -> None:
    """Wait until a new kernel answers, and run the agent in it if it is an IPython kernel.

    The requests go over the control channel, which a script's own client does not use before its first cell.
    """
    client = BlockingKernelClient()
    client.load_connection_info(connection)
    try:
        info = _asked(client, "kernel_info_request", {})
        if info.get("implementation") == IMPLEMENTATION:
            _asked(client, "execute_request", installation_request())
    finally:
        client.stop_channels()
        client.context.destroy(linger=0)


def _asked(client: BlockingKernelClient, kind: str, content: dict[str, Any]) -> dict[str, Any]:
    """Send a request and return the content of its reply; empty if none comes."""
    request = client.session.msg(kind, content)
    client.control_channel.send(request)
    deadline = time.monotonic() + _START_SECONDS
    while (left := deadline - time.monotonic()) > 0:
        try:
            reply = client.control_channel.get_msg(timeout=left)
        except Empty:
            break
        if reply["parent_header"].get("msg_id") == request["header"]["msg_id"]:
            found: dict[str, Any] = reply["content"]
            return found
    return {}
