"""Messages to the agent of a kernel that no server serves: that it was branched, and that it can publish its output."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from queue import Empty

from jupyter_client.blocking.client import BlockingKernelClient

from .agent_code import AGENT_REQUEST, PROBE_SESSION, take_over

#: How long a kernel may take to answer: its agent waits for its control thread.
_ANSWER_SECONDS = 5.0


def tell_branched(connection_file: Path, moved_ports: Mapping[int, int]) -> bool:
    """Tell a kernel that it is a branch: it takes its new ports and a history session of its own. Return whether it answered.

    Without that it would write into the history of the original, and keep its output for half a minute.
    """
    client = BlockingKernelClient()
    try:
        client.load_connection_file(str(connection_file))
        control, session = client.control_channel, client.session
        session.session = PROBE_SESSION
        resumed = {
            "op": "resumed",
            **take_over(os.environ, (), moved_ports),
            "connection_file": str(connection_file),
            "branched": True,
            "gpu_is_back": True,
        }
        # A kernel without an agent answers the last request only.
        for kind, content in (
            (AGENT_REQUEST, resumed),
            (AGENT_REQUEST, {"op": "thaw"}),
            ("kernel_info_request", {}),
        ):
            control.send(session.msg(kind, content))
        with suppress(Empty):
            while control.get_msg(timeout=_ANSWER_SECONDS)["msg_type"] != "kernel_info_reply":
                pass
            return True
        return False
    except (OSError, ValueError):  # no such file, or no connection info in it
        return False
    finally:
        client.stop_channels()
        client.context.destroy(linger=0)
