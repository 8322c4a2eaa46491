"""A former process that cannot be saved is kept for its time, but not while memory is short. tests/daemon has real processes."""

import asyncio
from types import SimpleNamespace

import pytest

from jupyter_gpuckpt.daemon.kernels import former
from jupyter_gpuckpt.daemon.kernels.former import FormerProcesses, FormerRecord
from jupyter_gpuckpt.daemon.kernels.kernel_records import KernelRecord
from jupyter_gpuckpt.engine.tree.tree import Tree
from jupyter_gpuckpt.errors import FreezeFailed
from jupyter_gpuckpt.wire.manifest_records import LaunchSpec
from jupyter_gpuckpt.wire.place import this_place
from jupyter_gpuckpt.wire.protocol import MemoryUse, Owner, OwnerKind, SaveRequest
from jupyter_gpuckpt.wire.states import KernelState


class Machine:
    """A machine on which nothing can be saved."""

    def __init__(self):
        self.killed, self.reserved_numbers = asyncio.Event(), {}
        self.loop = asyncio.get_running_loop()

    def save(self, *_):
        raise FreezeFailed("It cannot be saved.", hint="Never.")

    def alive(self, tree):
        return True

    def kill(self, tree):
        self.loop.call_soon_threadsafe(self.killed.set)


@pytest.mark.parametrize(("free_bytes", "keep_seconds"), [(1 << 20, 3600), (1 << 40, 0)])
def test_it_is_kept_until_its_time_is_over_or_memory_is_short(
    tmp_path, monkeypatch, free_bytes, keep_seconds
):
    total = 1 << 41
    monkeypatch.setattr(former, "memory_uses", lambda: [MemoryUse("RAM", total, free_bytes, 0.0)])

    async def run():
        machine = Machine()
        place = this_place(tmp_path)
        owner = Owner("owner", OwnerKind.SERVER, 0, 0.0)
        spec = LaunchSpec("k", [], {}, "/", "/log")
        tree = Tree(1, 1, 1, 1, 1, 1, "")
        record = KernelRecord(spec, owner, place, KernelState.RUNNING, tree=tree)
        unused = SimpleNamespace()
        kept = FormerProcesses(tmp_path, place, unused, unused, machine, unused)
        kept._keep(former._Former(FormerRecord(record, SaveRequest(), keep_seconds, 1), tree))
        assert kept.any_kept
        async with asyncio.timeout(60):
            await machine.killed.wait()
            while kept.any_kept:  # noqa: ASYNC110 - it is a matter of one turn
                await asyncio.sleep(0)

    asyncio.run(run())
