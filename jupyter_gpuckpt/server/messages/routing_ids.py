"""The routing ids by which a kernel knows the sockets of a page.

A kernel's ROUTER ignores a new client under the routing id of one whose end it has not dealt with yet, and never looks at it again
(zmq_setsockopt(3), ZMQ_ROUTER_HANDOVER). A resumed kernel still has the clients from before the suspend, and the sockets of pages
connect again by themselves before it has. ipykernel sets the option; xeus, IRkernel and others do not.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING

import zmq

if TYPE_CHECKING:
    from zmq.eventloop.zmqstream import ZMQStream

#: The channels on which a kernel answers by routing id: it asks on stdin the client that has sent the cell on shell.
_ROUTED = ("shell", "control", "stdin")


def renew(channels: Mapping[str, ZMQStream]) -> None:
    """Connect a page's sockets to the kernel again under a new routing id. What is in transit on them is lost."""
    routing_id = uuid.uuid4().hex.encode()
    for name in _ROUTED:
        stream = channels.get(name)
        if stream is None or stream.closed():
            continue
        socket = stream.socket
        endpoint = socket.getsockopt_string(zmq.LAST_ENDPOINT).rstrip("\0")
        socket.disconnect(endpoint)
        socket.setsockopt(zmq.ROUTING_ID, routing_id)
        socket.connect(endpoint)
