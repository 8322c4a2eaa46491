"""The start and the end of a runner's work: it continues the run that writes to its output, or starts a new one."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from jupyter_client.kernelspec import NATIVE_KERNEL_NAME, KernelSpecManager, NoSuchKernel
from jupyter_core.utils import run_sync
from nbclient.exceptions import CellExecutionError, CellTimeoutError

from ..errors import ConfigurationError, GpuCkptError
from ..wire import calls
from ..wire.daemon_settings import Settings
from ..wire.states import KernelState
from .run_kernel_manager import BatchKernelManager, Stopped
from .run_owner import BATCH, BatchOwner
from .runs import Run, RunRecord, digest_of, locked

if TYPE_CHECKING:
    from nbformat import NotebookNode

#: The errors that end a run for good.
_LAST = (CellExecutionError, CellTimeoutError)

_log = logging.getLogger(__name__)


@contextmanager
def prepared(
    notebook: NotebookNode,
    output: str,
    settings: Settings,
    *,
    kernel_name: str = "",
    restart: bool = False,
    from_snapshot: str = "",
) -> Iterator[BatchKernelManager]:
    """Yield the kernel manager of the run that writes to `output`; end the kernel after the block and after an error of a cell.

    After `Stopped` or KeyboardInterrupt the kernel is suspended instead; after any other exception it runs on for the next runner.
    `restart`: start a new run. `from_snapshot`: continue from the snapshot of a run on another machine.
    """
    kernel_name = kernel_name or notebook.metadata.get("kernelspec", {}).get("name", "")
    _check_kernel(kernel_name)
    digest = digest_of(notebook, kernel_name)
    with locked(settings.data, output) as run:
        record, owner = _found(run, digest, settings, output, restart, from_snapshot)
        manager = BatchKernelManager(run, record, owner)
        if kernel_name:
            manager.kernel_name = kernel_name
        try:
            yield manager
        except _LAST:
            _end(manager, succeeded=False)
            raise
        except (Stopped, KeyboardInterrupt):
            _suspend(manager)
            raise
        except BaseException:
            manager.release()
            raise
        _end(manager, succeeded=not manager.has_failed)


def _check_kernel(name: str) -> None:
    """Raise ConfigurationError if no kernel of this name is installed. The empty name is the default kernel's."""
    specs = KernelSpecManager()
    try:
        specs.get_kernel_spec(name or NATIVE_KERNEL_NAME)
    except NoSuchKernel:
        known = ", ".join(sorted(specs.find_kernel_specs())) or "none"
        raise ConfigurationError(
            f"There is no kernel {name}.", hint=f"Name one of the installed kernels: {known}."
        ) from None


def _found(
    run: Run, digest: str, settings: Settings, output: str, restart: bool, from_snapshot: str
) -> tuple[RunRecord, BatchOwner]:
    record = run.read()
    if record is not None and (restart or from_snapshot or record.digest != digest):
        _set_aside(record, settings, output)
        record = None
    if from_snapshot:
        record = _record_of(from_snapshot, digest, settings)
        run.write(record)
    if record is not None:
        owner = BatchOwner(settings, record, output)
        if record.is_ready and owner.find():
            return record, owner
        owner.kill()  # its runner was killed before the kernel had a journal
        owner.detach(record.kernel_id)
    record = run.begin(digest)
    owner = BatchOwner(settings, record, output)
    owner.client()
    return record, owner


def _set_aside(record: RunRecord, settings: Settings, output: str) -> None:
    """Suspend the kernel of a run that is not continued."""
    owner = BatchOwner(settings, record, output)
    snapshot_id = ""
    if record.is_ready:
        snapshot_id = owner.set_aside()
    else:
        owner.kill()
    owner.detach(record.kernel_id)
    if snapshot_id:
        _log.warning(
            "The notebook was changed, or is executed anew: the kernel of its earlier execution was suspended."
            " `jupyter gpuckpt resume %s` brings it back.",
            snapshot_id,
        )


def _record_of(snapshot_id: str, digest: str, settings: Settings) -> RunRecord:
    owner = BatchOwner(settings, RunRecord("", "", ""), "")
    launch = owner.client().send(calls.launch_spec(snapshot_id))
    owner.detach("")
    described = launch.jupyter.get(BATCH)
    if not isinstance(described, dict):
        raise ConfigurationError(
            f"Snapshot {snapshot_id} does not belong to an executed notebook.",
            hint="`jupyter gpuckpt resume` brings its kernel back.",
        )
    record = RunRecord(str(described["run_id"]), launch.kernel_id, str(described["digest"]), True)
    if record.digest != digest:
        raise ConfigurationError(
            f"Snapshot {snapshot_id} belongs to another notebook, or this one was changed since.",
            hint="Execute the notebook as it was, with the same kernel.",
        )
    return record


def _end(manager: BatchKernelManager, *, succeeded: bool) -> None:
    """End the kernel of a run that is over. After an error its automatic saves stay, so that a user can look for the cause."""
    owner = manager.gpuckpt_owner
    manager.disconnect()
    owner.kill()
    manager.run.forget()
    if succeeded:
        owner.remove_saves()
    run_sync(manager._async_cleanup_resources)()
    manager.release()


def _suspend(manager: BatchKernelManager) -> None:
    owner = manager.gpuckpt_owner
    try:
        kernel = getattr(manager.provisioner, "kernel", None)
        if kernel is not None and kernel.state is not KernelState.SUSPENDED:
            snapshot_id = owner.suspend(peer_access_off=False)
            _log.warning(
                "The kernel was suspended as snapshot %s. The same execution, started again, continues from there.",
                snapshot_id,
            )
    except GpuCkptError as error:
        _log.warning("The kernel runs on, because it could not be suspended: %s", error)
    finally:
        manager.release()
