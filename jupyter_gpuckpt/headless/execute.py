"""The work of `jupyter gpuckpt execute`: executing a notebook as nbclient does, and continuing a run that was interrupted."""

from __future__ import annotations

import asyncio
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import nbformat
from nbclient.exceptions import CellControlSignal, CellExecutionError, DeadKernelError

from ..client.save_costs import SaveCost
from ..errors import ConfigurationError, GpuCkptError, StoreFull, StoreUnavailable, is_disk_full
from ..linux.disk_reserve import write_atomically
from ..wire import daemon_settings
from .notebook_client import BatchClient
from .preparing import prepared
from .run_kernel_manager import BatchKernelManager, JournalClient, Stopped

if TYPE_CHECKING:
    from collections.abc import Callable

    from nbformat import NotebookNode

#: The interval at which new outputs are written, and the largest share of the time that writing may take.
_WRITE_EVERY_SECONDS, _WRITE_PART = 0.5, 0.1


@dataclass(frozen=True)
class ExecutionOptions:
    """The options of an execution. `timeout_seconds` None: cells have no time limit.

    `lose_at_most_seconds` None: the kernel is saved as often as by default; 0: never.
    """

    notebook: Path
    output: Path
    kernel_name: str = ""
    timeout_seconds: float | None = None
    allow_errors: bool = False
    lose_at_most_seconds: float | None = None
    restart: bool = False
    from_snapshot: str = ""


class _Executing(BatchClient):
    """A notebook client that writes the outputs so far to disk."""

    def __init__(self, notebook: NotebookNode, output: Path, **traits: Any) -> None:  # noqa: ANN401 - as the base
        super().__init__(notebook, **traits)
        self._output = output
        self._is_behind = True

    def process_message(self, *arguments: Any, **options: Any) -> NotebookNode | None:  # noqa: ANN401 - as the base
        """Apply a message of the kernel to the notebook."""
        self._is_behind = True
        return super().process_message(*arguments, **options)

    async def write_often(self) -> None:
        """Write the notebook after new messages, until this task is canceled."""
        while True:
            spent = 0.0
            if self._is_behind:
                # A file that cannot be written now may be later, and the last call of `write` reports it.
                with suppress(StoreUnavailable, StoreFull):
                    spent = self.write()
            await asyncio.sleep(max(_WRITE_EVERY_SECONDS, spent / _WRITE_PART))

    def write(self) -> float:
        """Write the notebook as it is now; return how many seconds that took. Raises StoreFull and StoreUnavailable."""
        began, self._is_behind = time.monotonic(), False
        try:
            write_atomically(self._output, (nbformat.writes(self.nb) + "\n").encode())  # type: ignore[no-untyped-call]
        except OSError as error:
            self._is_behind = True
            kind = StoreFull if is_disk_full(error) else StoreUnavailable
            raise kind(
                f"The output {self._output} cannot be written: {error.strerror}.",
                hint="The kernel runs on. Remove the cause; the same command then goes on with it.",
            ) from error
        return time.monotonic() - began


def execute(
    options: ExecutionOptions, progress: Callable[[int, int], None], warn: Callable[[str], None]
) -> BaseException | None:
    """Execute a notebook; return the error of a cell or kernel that ended it, None if there was none.

    `progress` is called with the number of cells that are done and the number of all cells, `warn` with the reason why an automatic
    save failed. Raises GpuCkptError, and Stopped if this process was asked to stop.
    """
    notebook = _read(options.notebook)
    settings = daemon_settings.from_environment()
    output = options.output.absolute()
    _check_output(output, options.notebook)
    count = len(notebook.cells)
    try:
        with prepared(
            notebook,
            str(output),
            settings,
            kernel_name=options.kernel_name,
            restart=options.restart,
            from_snapshot=options.from_snapshot,
        ) as manager:
            client = _Executing(
                notebook,
                output,
                km=manager,
                timeout_func=lambda cell: options.timeout_seconds,
                allow_errors=options.allow_errors,
                resources={"metadata": {"path": str(options.notebook.parent.absolute())}},
                on_cell_start=lambda cell, cell_index: progress(cell_index, count),
            )
            try:
                asyncio.run(_run(client, manager, options.lose_at_most_seconds, warn))
            finally:
                client.write()
    except (CellControlSignal, CellExecutionError, DeadKernelError) as error:
        return error
    return None


async def _run(
    client: _Executing,
    manager: BatchKernelManager,
    lose_at_most_seconds: float | None,
    warn: Callable[[str], None],
) -> None:
    beside = [asyncio.ensure_future(client.write_often())]
    if lose_at_most_seconds != 0:
        saving = _save_often(client, manager, lose_at_most_seconds, warn)
        beside.append(asyncio.ensure_future(saving))
    try:
        await client.async_execute()
    finally:
        for task in beside:
            task.cancel()
        for task in beside:
            with suppress(asyncio.CancelledError):
                await task


async def _save_often(
    client: _Executing,
    manager: BatchKernelManager,
    wanted_seconds: float | None,
    warn: Callable[[str], None],
) -> None:
    cost, told = SaveCost(), ""
    while True:
        await asyncio.sleep(cost.pause_seconds(wanted_seconds))
        if not isinstance(client.kc, JournalClient) or not manager.record.is_ready:
            continue
        try:
            peer_access_off = await client.kc.prepare_save()
            save = partial(manager.gpuckpt_owner.save, peer_access_off=peer_access_off)
            cost = await asyncio.to_thread(save)
        except GpuCkptError as error:
            if error.message != told:
                warn(f"The kernel was not saved: {error.message} {error.hint}".strip())
            told = error.message
        else:
            told = ""
            await client.kc.ask("peers_on")


def _check_output(output: Path, notebook: Path) -> None:
    """Raise ConfigurationError if the output cannot be written, or is the notebook: before a kernel is started for it."""
    if not output.parent.is_dir():
        raise ConfigurationError(f"There is no folder {output.parent}.")
    if output.is_dir():
        raise ConfigurationError(
            f"The output {output} is a folder.",
            hint="Name the file that the notebook is written to.",
        )
    with suppress(FileNotFoundError):
        if output.samefile(notebook):
            raise ConfigurationError(
                "The output would replace the notebook.",
                hint="Choose another output: a run that is continued reads the notebook again.",
            )
    try:
        # What rights, quotas and read-only mounts allow is known only after a file was made.
        tempfile.TemporaryFile(dir=output.parent).close()
    except OSError as error:
        raise ConfigurationError(
            f"No file can be written to the folder {output.parent}: {error.strerror}.",
            hint="Choose another output.",
        ) from error


def _read(path: Path) -> NotebookNode:
    try:
        notebook: NotebookNode = nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror}.") from error
    except Exception as error:  # nbformat raises many kinds
        raise ConfigurationError(f"{path} is not a notebook: {error}") from error
    return notebook


__all__ = ["ExecutionOptions", "Stopped", "execute"]
