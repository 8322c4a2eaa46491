"""The cells that ran in a kernel when another server saved it: the snapshot names them, and the kernel has their last messages."""

from __future__ import annotations

import msgspec

from .kernel_messages import fields, is_about_comms, read


class BegunCells(msgspec.Struct, frozen=True):
    """The cells that had not ended. `asked`: requests sent to the kernel; `running`: begun requests; `cells`: cell ids by request."""

    asked: list[str] = []
    running: list[str] = []
    cells: dict[str, str] = {}


def begun_cells(described: object) -> BegunCells:
    """Return the cells in a kernel's description; none if it is invalid, because it may come from any machine."""
    try:
        return msgspec.convert(described, BegunCells)
    except msgspec.ValidationError:
        return BegunCells()


def messages_of(
    requests: set[str], messages: list[list[bytes]]
) -> tuple[list[list[bytes]], set[str]]:
    """Return the messages that belong to these requests, and the requests whose first message is among them.

    Messages about comms are left out: pages ask for comms by themselves.
    """
    found, begun = list[list[bytes]](), set[str]()
    for parts in messages:
        header, parent, content = read(parts)
        if parent.msg_id not in requests or is_about_comms(parts):
            continue
        found.append(parts)
        if header.msg_type == "status" and fields(content).get("execution_state") == "busy":
            begun.add(parent.msg_id)
    return found, begun
