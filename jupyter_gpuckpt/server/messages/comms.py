"""A kernel's comms as they were when it was saved, and the answers that pages get about them while the kernel is away.

Covers: the list of comms, ipywidgets' comm `jupyter.widget.control` (every page asks it for all states), `request_state` of a
single widget, which of a page's messages only the kernel can answer. Does not cover: how the comms are read in the kernel
(`kernel_agent/agent.py`), how messages are sent (`gate.py`).
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple

import msgspec
import zstandard

from ...wire import decoding

#: ipywidgets' comm for requests about all widgets (schema/messages.md of ipywidgets, "The jupyter.widget.control comm target").
CONTROL_TARGET = "jupyter.widget.control"

#: The largest states that are recorded for the next server: they are written with every record of the kernel.
_MAX_RECORDED_BYTES = 1 << 20

#: The data of a `comm_msg` (`method`, `states` or `state`, and `buffer_paths`), and its buffers.
Update = tuple[dict[str, Any], list[bytes]]


class IopubMessage(NamedTuple):
    """An iopub message that is sent in the kernel's name."""

    kind: str
    content: dict[str, Any]
    buffers: Sequence[bytes] = ()


class SavedComms:
    """The comms of one kernel at one moment. `targets`: target names by comm id."""

    def __init__(
        self,
        targets: dict[str, str] | None = None,
        states: bytes = b"",
        buffers: Sequence[bytes] = (),
    ) -> None:
        self.targets = targets or {}
        self._states, self._buffers = states, [bytes(buffer) for buffer in buffers]
        self._recorded = self._encoded() if states else ""

    @classmethod
    def from_agent(cls, targets: dict[str, str], buffers: Sequence[bytes]) -> SavedComms:
        """Return the comms in an agent's reply. It takes up to about 0.1 s, so call it outside the event loop."""
        return cls(targets, bytes(buffers[0]) if buffers else b"", buffers[1:])

    @classmethod
    def from_record(cls, record: Any) -> SavedComms:
        """Return the comms that an earlier server described by `record`; unreadable parts are left out."""
        if not isinstance(record, dict):
            return cls()
        targets = record.get("targets", {})
        try:
            packed = base64.b64decode(record.get("states", ""), validate=True)
            if packed:
                unpacked = zstandard.ZstdDecompressor().decompress(packed)
                return cls(targets, *decoding.from_msgpack(unpacked, tuple[bytes, list[bytes]]))
        except (binascii.Error, zstandard.ZstdError, msgspec.MsgspecError, TypeError):
            pass
        return cls(targets)

    def record(self) -> dict[str, Any]:
        """Return the record that the daemon keeps for the next server."""
        return {"targets": self.targets, "states": self._recorded}

    def without_states(self) -> SavedComms:
        """Return the comms without their states, for a kernel that has run on since."""
        return SavedComms(self.targets)

    def listed(self, target_name: str | None) -> dict[str, Any]:
        """Return the content of a `comm_info_reply` as the kernel would fill it."""
        comms = {
            comm_id: {"target_name": target}
            for comm_id, target in self.targets.items()
            if target_name is None or target == target_name
        }
        return {"status": "ok", "comms": comms}

    def wants_kernel(self, content: dict[str, Any]) -> bool:
        """Return whether a `comm_msg` is a user's action, and not a page's own request to draw widgets."""
        target = self.targets.get(str(content.get("comm_id", "")))
        return target is not None and target != CONTROL_TARGET and not _asks_for_state(content)

    def all_states(self) -> Update | None:
        """Return the kernel's reply to `request_states`; None if it is not known."""
        return (self._update, self._buffers) if self._states else None

    def state_of(self, comm_id: str) -> Update | None:
        """Return the kernel's reply to `request_state` on the comm of a widget; None if it is not known."""
        model = self._update["states"].get(comm_id) if self._states else None
        if model is None:
            return None
        own = [
            (path[2:], buffer)
            for path, buffer in zip(self._update["buffer_paths"], self._buffers, strict=True)
            if path[0] == comm_id
        ]
        data = {
            "method": "update",
            "state": model["state"],
            "buffer_paths": [path for path, _ in own],
        }
        return data, [buffer for _, buffer in own]

    @cached_property
    def _update(self) -> dict[str, Any]:
        update: dict[str, Any] = json.loads(self._states)
        return update

    def _encoded(self) -> str:
        packed = zstandard.ZstdCompressor().compress(
            msgspec.msgpack.encode((self._states, self._buffers))
        )
        encoded = base64.b64encode(packed).decode()
        return encoded if len(encoded) <= _MAX_RECORDED_BYTES else ""


class PageComms:
    """The comms that one page opened while the kernel was away; the kernel never sees them."""

    def __init__(self) -> None:
        self._open: set[str] = set()
        #: Comms closed by this server; messages that the page sent before it received that may be in transit.
        self._closed: set[str] = set()

    def __bool__(self) -> bool:
        """Return whether messages to any of these comms may arrive."""
        return bool(self._open or self._closed)

    def answer(
        self, saved: SavedComms, kind: str, content: dict[str, Any], *, absent: bool
    ) -> list[IopubMessage] | None:
        """Return the messages that answer a page's message; None if the kernel must answer it.

        `absent`: the kernel cannot be asked. Otherwise only messages to one of these comms are answered, by closing it: the
        saved state is out of date, and the page then asks the kernel itself.
        """
        comm_id = str(content.get("comm_id", ""))
        if comm_id in self._open | self._closed:
            return self._answer_own(comm_id, kind, saved.all_states() if absent else None)
        if not absent:
            return None
        if kind == "comm_open" and content.get("target_name") == CONTROL_TARGET:
            self._open.add(comm_id)
            return [] if saved.all_states() else self._close(comm_id)
        if kind == "comm_msg" and saved.targets.get(comm_id) == CONTROL_TARGET:
            return _update_message(comm_id, saved.all_states())
        if kind == "comm_msg" and _asks_for_state(content):
            return _update_message(comm_id, saved.state_of(comm_id))
        return None

    def _answer_own(self, comm_id: str, kind: str, states: Update | None) -> list[IopubMessage]:
        if comm_id in self._open and kind == "comm_msg":
            return _update_message(comm_id, states) or self._close(comm_id)
        self._open.discard(comm_id)
        return []

    def _close(self, comm_id: str) -> list[IopubMessage]:
        self._open.discard(comm_id)
        self._closed.add(comm_id)
        return [IopubMessage("comm_close", {"comm_id": comm_id, "data": {}})]


def _update_message(comm_id: str, update: Update | None) -> list[IopubMessage] | None:
    if update is None:
        return None
    data, buffers = update
    return [IopubMessage("comm_msg", {"comm_id": comm_id, "data": data}, buffers)]


def _asks_for_state(content: dict[str, Any]) -> bool:
    data = content.get("data")
    return isinstance(data, dict) and data.get("method") == "request_state"
