"""A kernel's comms as they were when it was saved, and what pages that are opened meanwhile are told about them.

Covers: the list of comms, ipywidgets' comm `jupyter.widget.control` (every page asks it for all states), `request_state` of a
single widget, which of a page's messages somebody means for the kernel. Does not cover: how the kernel tells
(`kernel_agent/agent.py`), how messages travel (`websocket.py`).
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

from ... import decoding

#: ipywidgets' comm for questions about all widgets (schema/messages.md of ipywidgets, "The jupyter.widget.control comm target").
CONTROL_TARGET = "jupyter.widget.control"

#: Larger states are known to this server only: they would be written with every record of the kernel.
_MOST_RECORDED_BYTES = 1 << 20

#: The data of a `comm_msg` with `method`, `states` or `state`, and `buffer_paths`; and its buffers.
Update = tuple[dict[str, Any], list[bytes]]


class Said(NamedTuple):
    """A message on iopub in the kernel's name."""

    kind: str
    content: dict[str, Any]
    buffers: Sequence[bytes] = ()


class SavedComms:
    """The comms of one kernel; never changes. `targets`: target names by comm id."""

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
    def told(cls, targets: dict[str, str], buffers: Sequence[bytes]) -> SavedComms:
        """From the agent's answer; takes some 0.1 s for the largest, so not for the event loop."""
        return cls(targets, bytes(buffers[0]) if buffers else b"", buffers[1:])

    @classmethod
    def from_record(cls, record: Any) -> SavedComms:
        """From what `record` gave to an earlier server; what cannot be read is left out."""
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
        """What is kept with the kernel for the next server."""
        return {"targets": self.targets, "states": self._recorded}

    def without_states(self) -> SavedComms:
        """The comms alone: those of a kernel that went on since."""
        return SavedComms(self.targets)

    def listed(self, target_name: str | None) -> dict[str, Any]:
        """The content of a `comm_info_reply`, as the kernel would fill it."""
        comms = {
            comm_id: {"target_name": target}
            for comm_id, target in self.targets.items()
            if target_name is None or target == target_name
        }
        return {"status": "ok", "comms": comms}

    def wants_kernel(self, content: dict[str, Any]) -> bool:
        """Whether a `comm_msg` is something that somebody did: not what a page asks by itself to draw widgets."""
        target = self.targets.get(str(content.get("comm_id", "")))
        return target is not None and target != CONTROL_TARGET and not _asks_for_state(content)

    def all_states(self) -> Update | None:
        """What the kernel would answer to `request_states`; None if that is not known."""
        return (self._update, self._buffers) if self._states else None

    def state_of(self, comm_id: str) -> Update | None:
        """What the kernel would answer to `request_state` on the comm of a widget; None if that is not known."""
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
        return encoded if len(encoded) <= _MOST_RECORDED_BYTES else ""


class PageComms:
    """The comms that one page opened while the kernel was away: the kernel never hears of them."""

    def __init__(self) -> None:
        self._open: set[str] = set()
        #: Closed by us. What the page sent before it heard that is still on its way.
        self._closed: set[str] = set()

    def __bool__(self) -> bool:
        """Whether messages to any may come."""
        return bool(self._open or self._closed)

    def answer(
        self, saved: SavedComms, kind: str, content: dict[str, Any], *, absent: bool
    ) -> list[Said] | None:
        """What a page is told; None if its message is the kernel's business.

        `absent`: the kernel cannot be asked. Otherwise only what is addressed to one of these comms is answered, by closing
        it: what was saved is old now, and the page asks the kernel itself.
        """
        comm_id = str(content.get("comm_id", ""))
        if comm_id in self._open | self._closed:
            return self._own(comm_id, kind, saved.all_states() if absent else None)
        if not absent:
            return None
        if kind == "comm_open" and content.get("target_name") == CONTROL_TARGET:
            self._open.add(comm_id)
            return [] if saved.all_states() else self._close(comm_id)
        if kind == "comm_msg" and saved.targets.get(comm_id) == CONTROL_TARGET:
            return _told(comm_id, saved.all_states())
        if kind == "comm_msg" and _asks_for_state(content):
            return _told(comm_id, saved.state_of(comm_id))
        return None

    def _own(self, comm_id: str, kind: str, states: Update | None) -> list[Said]:
        if comm_id in self._open and kind == "comm_msg":
            return _told(comm_id, states) or self._close(comm_id)
        self._open.discard(comm_id)
        return []

    def _close(self, comm_id: str) -> list[Said]:
        self._open.discard(comm_id)
        self._closed.add(comm_id)
        return [Said("comm_close", {"comm_id": comm_id, "data": {}})]


def _told(comm_id: str, update: Update | None) -> list[Said] | None:
    if update is None:
        return None
    data, buffers = update
    return [Said("comm_msg", {"comm_id": comm_id, "data": data}, buffers)]


def _asks_for_state(content: dict[str, Any]) -> bool:
    data = content.get("data")
    return isinstance(data, dict) and data.get("method") == "request_state"
