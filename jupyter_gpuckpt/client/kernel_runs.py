"""Code that a program without a server runs in a kernel, by the kernel's connection file."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from queue import Empty

from jupyter_client.blocking.client import BlockingKernelClient

from ..errors import KernelStateConflict
from .cell_output import CellOutput

#: How long a kernel may take to answer at first, and code to end after an interrupt.
_READY_SECONDS, _INTERRUPT_SECONDS = 60.0, 10.0
#: The interval at which it is looked whether the kernel is there.
_LOOK_SECONDS = 0.5


def run_code(
    connection_file: Path,
    code: str,
    output: CellOutput,
    seconds: float | None,
    *,
    interrupt: Callable[[], None],
    is_alive: Callable[[], bool],
) -> None:
    """Run code in a kernel until it has ended; after `seconds` interrupt it. `output` gets what it prints, and how it ended.

    Raises KernelStateConflict if the kernel does not answer.
    """
    client = BlockingKernelClient()
    try:
        client.load_connection_file(str(connection_file))
        client.start_channels(stdin=False, hb=False)
        try:
            client.wait_for_ready(timeout=_READY_SECONDS)
        except RuntimeError as error:
            raise KernelStateConflict(
                "The kernel does not answer.",
                hint="It may be busy: wait until its cell has ended, or interrupt it.",
            ) from error
        message_id = client.execute(code, allow_stdin=False, stop_on_error=False)
        deadline = None if seconds is None else time.monotonic() + seconds
        was_interrupted = False
        while not (output.is_idle and output.status != "running"):
            if not _feed(client, message_id, output) and not is_alive():
                output.end("kernel died")
                return
            if deadline is None or time.monotonic() < deadline:
                continue
            if was_interrupted:
                output.end("not ended")
                return
            interrupt()
            was_interrupted, deadline = True, time.monotonic() + _INTERRUPT_SECONDS
            output.time_out()
    finally:
        client.stop_channels()
        client.context.destroy(linger=0)


def _feed(client: BlockingKernelClient, message_id: str, output: CellOutput) -> bool:
    """Feed the messages that have arrived; return whether there was any."""
    any_came = False
    for channel, seconds in ((client.iopub_channel, _LOOK_SECONDS), (client.shell_channel, 0)):
        try:
            message = channel.get_msg(timeout=seconds)
        except Empty:
            continue
        any_came = True
        if message["parent_header"].get("msg_id") == message_id:
            output.feed(message["msg_type"], message["content"])
    return any_came
