"""Which kernels count as saved before this machine goes, by themselves."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

from jupyter_gpuckpt.daemon.kernels import operations as operations_module
from jupyter_gpuckpt.daemon.kernels.operations import Operations
from jupyter_gpuckpt.daemon.reclaim.first_saves import FirstSaves
from jupyter_gpuckpt.errors import KernelBusy, StoreUnavailable
from jupyter_gpuckpt.wire.deadlines import Deadline
from jupyter_gpuckpt.wire.protocol import OperationKind, OwnerKind, Position, Result
from jupyter_gpuckpt.wire.states import KernelState
from tests.conftest import PATIENCE


class Kernel:
    """A kernel, and the operation on it."""

    def __init__(self, kernel_id, owner=OwnerKind.SCRIPT):
        self.kernel_id = self.owner_id = kernel_id
        self.state, self.in_flight = KernelState.RUNNING, None
        self.record = SimpleNamespace(
            ends=Deadline(), snapshot_id="", owner=SimpleNamespace(kind=owner)
        )

    def on_operation(self, operation):
        pass


class Daemon:
    """Kernels that are saved as the daemon does it, at once; and a remote that has what is saved."""

    is_anywhere = True

    def __init__(self, *kernels):
        self.kernels = kernels
        streams = SimpleNamespace(position=Position(1, 1))
        self.operations = Operations(streams)
        self.first_saves = FirstSaves(self.kernels, self.operations, self, self)
        self.first_saves.begin()

    def begin(self, kernel):
        operation = self.operations.add(OperationKind.SAVE, kernel)
        kernel.state, kernel.in_flight = KernelState.SAVING, operation
        return operation

    def end(self, kernel, error=None):
        operation, kernel.in_flight = kernel.in_flight, None
        kernel.state = KernelState.RUNNING
        if error is not None:
            operation.fail(error)
            return
        kernel.record.snapshot_id = f"of {kernel.kernel_id}"
        operation.succeed(Result(kernel.record.snapshot_id, 0.0))

    def save(self, kernel_id, request):
        (kernel,) = [one for one in self.kernels if one.kernel_id == kernel_id]
        if kernel.in_flight:
            raise KernelBusy("The kernel is saving already.")
        operation = self.begin(kernel)
        self.end(kernel)
        return operation

    def has(self, snapshot_id):
        return bool(snapshot_id)

    @property
    def are_complete(self):
        return self.first_saves.are_complete(disk_survives=False)


def test_a_kernel_that_another_save_keeps_busy_is_waited_for():
    async def saved():
        busy, other = Kernel("busy"), Kernel("other")
        daemon = Daemon(busy, other)
        daemon.begin(busy)
        saves = asyncio.ensure_future(daemon.first_saves.save_left_over())
        for _ in range(10):
            await asyncio.sleep(0)
        assert not daemon.are_complete
        assert not saves.done()
        daemon.end(busy)
        await asyncio.wait_for(saves, PATIENCE)
        assert daemon.are_complete

    asyncio.run(saved())


def test_a_kernel_whose_save_failed_is_not_waited_for_and_one_saved_later_is():
    async def saved():
        failing, busy = (Kernel(one, OwnerKind.SERVER) for one in ("failing", "busy"))
        daemon = Daemon(failing, busy)
        assert not daemon.are_complete
        daemon.begin(failing)
        daemon.end(failing, StoreUnavailable("The disk is full."))
        daemon.begin(busy)
        # A request that waited, and found it being saved.
        daemon.operations.add(OperationKind.SAVE, busy).fail(KernelBusy("It is saving already."))
        assert not daemon.are_complete
        daemon.end(busy)
        assert daemon.are_complete
        # The user saves it again, and that works: its upload counts.
        daemon.begin(failing)
        daemon.end(failing)
        assert daemon.are_complete
        failing.record.snapshot_id = ""
        assert not daemon.are_complete

    asyncio.run(saved())


def test_a_save_is_known_when_its_operation_is_dropped(monkeypatch):
    async def saved():
        daemon = Daemon(Kernel("a"))
        await daemon.first_saves.save_left_over()
        assert daemon.are_complete
        monkeypatch.setattr(operations_module, "KEEP_SECONDS", -1.0)
        assert list(daemon.operations) == []
        assert daemon.are_complete
        daemon.first_saves.end()
        daemon.first_saves.begin()
        assert not daemon.are_complete

    asyncio.run(saved())
