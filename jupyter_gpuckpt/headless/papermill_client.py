"""The implementation of papermill's engine `gpuckpt`, imported at its first use (`papermill_engine.py`)."""

from __future__ import annotations

import signal
import threading
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from jupyter_core.utils import run_sync
from papermill.clientwrap import PapermillNotebookClient
from papermill.engines import NBClientEngine, NotebookExecutionManager
from papermill.log import logger
from papermill.utils import merge_kwargs, remove_args

from ..client.save_costs import SaveCost
from ..errors import ConfigurationError, GpuCkptError
from ..wire import daemon_settings, durations
from .journal_reader import Rewound
from .notebook_client import OutlivedClient
from .preparing import prepared
from .run_kernel_manager import BatchKernelManager, Stopped

#: The exit status after a SIGTERM, as a shell reports it.
_TERMINATED = 128 + signal.SIGTERM


class _Client(OutlivedClient, PapermillNotebookClient):  # type: ignore[misc] # papermill has no types
    """papermill's notebook client, which starts over from the journal whenever the kernel was resumed."""

    def execute(self, **arguments: Any) -> Any:  # noqa: ANN401 - as the base
        while True:
            try:
                return super().execute(**arguments)
            except Rewound:
                run_sync(self.rewind)()
                self.nb_man.notebook_start()
                if self.nb_man.pbar is not None:
                    self.nb_man.pbar.reset()


class Engine(NBClientEngine):  # type: ignore[misc] # papermill has no types
    """papermill's own engine with kernels that outlive it."""

    @classmethod
    def execute_managed_notebook(
        cls,
        nb_man: NotebookExecutionManager,
        kernel_name: str,
        log_output: bool = False,
        stdout_file: Any = None,  # noqa: ANN401 - papermill's
        stderr_file: Any = None,  # noqa: ANN401 - papermill's
        start_timeout: int = 60,
        execution_timeout: int | None = None,
        gpuckpt_lose_at_most: float | str | None = None,
        **arguments: Any,  # noqa: ANN401 - papermill's
    ) -> None:
        """Execute a notebook."""
        traits = merge_kwargs(
            remove_args(["input_path", "timeout", "startup_timeout"], **arguments),
            timeout=execution_timeout or arguments.get("timeout"),
            startup_timeout=start_timeout,
            kernel_name=kernel_name,
            log=logger,
            log_output=log_output,
            stdout_file=stdout_file,
            stderr_file=stderr_file,
        )
        settings = daemon_settings.from_environment()
        output = _identity(nb_man.output_path)
        try:
            # A second SIGTERM must not end the process before the kernel is suspended.
            with (
                ExitStack() as until_suspended,
                prepared(nb_man.nb, output, settings, kernel_name=kernel_name) as manager,
            ):
                until_suspended.enter_context(_stopped_by_sigterm(manager))
                with _saved_often(manager, gpuckpt_lose_at_most):
                    _Client(nb_man, km=manager, **traits).execute()
                # papermill raises errors of cells later, from the notebook.
                manager.has_failed = bool(nb_man.nb.metadata.papermill.get("exception"))
        except Stopped:
            raise SystemExit(_TERMINATED) from None


def _identity(output_path: str | None) -> str:
    """Return the key of the run: the output's path or address. Without an output the key is random, so the run cannot be continued."""
    if not output_path:
        return f"papermill-{uuid.uuid4()}"
    return output_path if "://" in output_path else str(Path(output_path).absolute())


@contextmanager
def _stopped_by_sigterm(manager: BatchKernelManager) -> Iterator[None]:
    """Make SIGTERM stop the run during the block, unless the program has a handler of its own or executes this in another thread."""
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return

    def stop(*_: object) -> None:
        manager.is_stopping = True

    signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


@contextmanager
def _saved_often(manager: BatchKernelManager, lose_at_most: float | str | None) -> Iterator[None]:
    """Save the kernel periodically during the block, in a thread, because papermill's event loop runs during cells only.

    `lose_at_most` None: as often as by default; 0: never.
    """
    try:
        wanted_seconds = None if lose_at_most is None else durations.to_seconds(lose_at_most)
    except ValueError as error:
        raise ConfigurationError(f"gpuckpt_lose_at_most: {error}") from None
    if wanted_seconds == 0:
        yield
        return
    ended = threading.Event()

    def save_often() -> None:
        cost, told = SaveCost(), ""
        while not ended.wait(cost.pause_seconds(wanted_seconds)):
            if not manager.record.is_ready:
                continue
            try:
                cost = manager.gpuckpt_owner.save(peer_access_off=False)
            except GpuCkptError as error:
                if error.message != told:
                    logger.warning("The kernel was not saved: %s", error)
                told = error.message

    thread = threading.Thread(target=save_often, name="gpuckpt-autosave", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
