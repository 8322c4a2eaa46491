"""The variables of a kernel now, for callers without an event loop and without a server: from the kernel's agent."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from queue import Empty

import msgspec
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.channels import ZMQSocketChannel
from jupyter_client.session import Session
from jupyter_core.paths import jupyter_runtime_dir

from ..wire.manifest_records import Variables
from .agent_code import AGENT_REQUEST, PROBE_SESSION

#: The time for computing fingerprints of the variables' values, and how long a kernel may take to answer.
_FINGERPRINT_SECONDS, _ANSWER_SECONDS = 1.0, 5.0
_IDLE_SECONDS = 3.0


def variables_now(
    kernel_id: str, *, idle_only: bool = False, connection_file: Path | None = None
) -> Variables | None:
    """Return the variables of a running kernel of this user; None if they cannot be known: no agent, no connection file, no answer.

    `idle_only`: also None while a cell runs, which may be changing them. `connection_file`: by default that in Jupyter's runtime directory.
    """
    path = connection_file or Path(jupyter_runtime_dir(), f"kernel-{kernel_id}.json")
    client = BlockingKernelClient()
    try:
        client.load_connection_file(str(path))
        # Each client needs an identity of its own, which the channels take from the session when they are made.
        shell, control = client.shell_channel, client.control_channel
        client.session.session = PROBE_SESSION
        if idle_only and not _is_idle(client.session, shell):
            return None
        return _listed(client.session, control)
    except (OSError, ValueError):  # no such file, or no connection info in it
        return None
    finally:
        client.stop_channels()
        client.context.destroy(linger=0)


def _is_idle(session: Session, shell: ZMQSocketChannel) -> bool:
    """Return whether the shell answers, which it does between cells only."""
    shell.send(session.msg("kernel_info_request", {}))
    try:
        shell.get_msg(timeout=_IDLE_SECONDS)
    except Empty:
        return False
    return True


def _listed(session: Session, control: ZMQSocketChannel) -> Variables | None:
    request = {"op": "variables", "fingerprint_seconds": _FINGERPRINT_SECONDS}
    # A kernel without an agent answers nothing but the second request.
    for kind, content in ((AGENT_REQUEST, request), ("kernel_info_request", {})):
        control.send(session.msg(kind, content))
    with suppress(Empty, msgspec.ValidationError):  # a kernel may answer anything
        reply = control.get_msg(timeout=_ANSWER_SECONDS)
        return msgspec.convert(reply["content"].get("variables"), Variables)
    return None
