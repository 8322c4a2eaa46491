"""The states of all widgets, as ipywidgets itself reports them."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from jupyter_client.jsonutil import json_clean, json_default

#: Limits of reading widget states, in bytes and CPU seconds: the kernel is about to be frozen.
_MAX_STATE_BYTES = 16 << 20
_MAX_STATE_SECONDS = 0.5


def widget_states() -> list[bytes]:
    """Return ipywidgets' reply to `request_states` on its comm `jupyter.widget.control`: the data as JSON, then the buffers.

    The list is empty if there are no widgets, or too many, or if a cell that changes them interferes. See
    ipywidgets/widgets/widget.py, `_handle_control_comm_msg`.
    """
    try:
        return _read_widget_states(time.thread_time() + _MAX_STATE_SECONDS)
    except Exception:
        return []


def _read_widget_states(deadline: float) -> list[bytes]:
    module: Any = sys.modules.get("ipywidgets.widgets.widget")
    if module is None:
        return []
    # ipywidgets 7 has the second attribute.
    widgets = dict(module._instances if hasattr(module, "_instances") else module.Widget.widgets)
    texts: list[str] = []
    paths: list[Any] = []
    buffers: list[bytes] = []
    left = _MAX_STATE_BYTES
    for model_id, widget in widgets.items():
        if widget.comm is None:
            continue
        state, below, views = module._remove_buffers(widget.get_state())
        # The size is checked before the buffers are copied and encoded.
        found = [memoryview(view) for view in views]
        left -= sum(view.nbytes for view in found)
        if left < sum(len(value) for value in state.values() if isinstance(value, str)):
            return []
        entry = {
            "model_name": widget._model_name,
            "model_module": widget._model_module,
            "model_module_version": widget._model_module_version,
            "state": state,
        }
        texts.append(f"{json.dumps(model_id)}: {_as_json(entry)}")
        left -= len(texts[-1].encode())
        if left < 0 or time.thread_time() > deadline:
            return []
        paths += [[model_id, "state", *path] for path in below]
        buffers += [view.tobytes() for view in found]
    if not texts:
        return []
    states, buffer_paths = ", ".join(texts), json.dumps(paths)
    data = f'{{"method": "update_states", "states": {{{states}}}, "buffer_paths": {buffer_paths}}}'
    return [data.encode(), *buffers]


def _as_json(value: Any) -> str:
    """Encode as jupyter_client does (`session.json_packer`), without its warning about values that are not JSON."""
    try:
        return json.dumps(value, default=json_default, allow_nan=False)
    except (TypeError, ValueError):
        return json.dumps(json_clean(value), default=json_default, allow_nan=False)
