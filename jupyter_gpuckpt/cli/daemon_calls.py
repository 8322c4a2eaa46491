"""Connections of one command to the daemon, and waiting for the ends of operations."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ..errors import GpuCkptError, OperationCancelled, error_from
from ..wire import calls
from ..wire.calls import Route
from ..wire.protocol import Operation, OperationState, SaveRequest
from ..wire.states import KernelState
from . import printing

if TYPE_CHECKING:
    from ..client import Client


@contextmanager
def daemon(*, waits: bool = False) -> Iterator[Client]:
    """Yield a client of the daemon, which is started if necessary. Raises ConfigurationError in a kernel under the engine.

    `waits`: whether to wait, with a warning, for a daemon that does not answer at once. Commands that only read raise DaemonSilent.
    """
    from ..client import Client, starting  # noqa: PLC0415 - an HTTP library, too slow for --help

    starting.require_outside()
    client = Client.connect(
        patience_seconds=calls.ANSWER_SECONDS if waits else calls.ALIVE_SECONDS,
        on_silence=lambda error: printing.warn(f"{error} It is waited for. {error.hint}"),
    )
    try:
        yield client
    finally:
        client.close()


def begin_save(
    client: Client, kernel_id: str, title: str = "", call: Route[Operation] = calls.save
) -> Operation:
    """Start a save or suspend (`call`) of a kernel. Its variables are saved for comparisons, if it tells them."""
    from ..client.kernel_variables import variables_now  # noqa: PLC0415 - too slow for --help

    runs = client.send(calls.kernel(kernel_id)).state is KernelState.RUNNING
    variables = variables_now(kernel_id) if runs else None
    # As on the page, a snapshot that gets a title is pinned.
    request = SaveRequest(title=title, pinned=bool(title), variables=variables)
    return client.send(call(kernel_id, request))


def finish(client: Client, operation: Operation, title: str) -> Operation:
    """Show the progress of an operation until its end; return the successful operation, or raise its error."""
    latest = operation
    with printing.ProgressBar(title) as bar:
        for latest in client.follow(operation.operation_id):
            bar.show(latest.progress)
    if latest.state is not OperationState.SUCCEEDED:
        raise _error_of(latest)
    return latest


def _error_of(operation: Operation) -> GpuCkptError:
    if operation.error:
        return error_from(operation.error)
    if operation.state is OperationState.CANCELLED:
        return OperationCancelled("The operation was canceled; nothing was changed.")
    return GpuCkptError(
        f"The operation ended in the state {operation.state.value} without a reason.",
        hint="The daemon's log has more.",
    )
