"""The routing ids by which a kernel knows the sockets of a page.

A kernel's ROUTER ignores a new client under the routing id of one whose end it has not dealt with yet, and never looks at it again
(zmq_setsockopt(3), ZMQ_ROUTER_HANDOVER). A resumed kernel still has the clients from before the suspend, and the sockets of pages
connect again by themselves before it has. ipykernel sets the option; xeus, IRkernel and others do not.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

import zmq

if TYPE_CHECKING:
    from zmq.eventloop.zmqstream import ZMQStream

#: The channels on which a kernel answers by routing id: it asks on stdin the client that has sent the cell on shell.
_ROUTED = ("shell", "control", "stdin")


_log = logging.getLogger(__name__)


def routing_id(client_session: str, renewals: int) -> bytes:
    """Return the routing id of a page's sockets after so many renewals; the first one is Jupyter's own."""
    return (f"{client_session}-{renewals}" if renewals else client_session).encode()


def renew(channels: Mapping[str, ZMQStream], new_id: bytes) -> None:
    """Connect a page's sockets to the kernel again under a new routing id. Replies that have not arrived are lost."""
    for name in _ROUTED:
        stream = channels.get(name)
        if stream is None or stream.closed():
            continue
        socket = stream.socket
        endpoint = socket.getsockopt_string(zmq.LAST_ENDPOINT).rstrip("\0")
        try:
            socket.disconnect(endpoint)
            socket.setsockopt(zmq.ROUTING_ID, new_id)
            socket.connect(endpoint)
        except zmq.ZMQError as error:
            _log.warning("a page's %s socket keeps its connection: %s", name, error)
