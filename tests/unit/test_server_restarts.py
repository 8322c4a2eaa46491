"""What is done before a restart, in which order, and what is told where the process cannot be kept. tests/server has real kernels."""

import asyncio
import logging
from types import SimpleNamespace

import pytest

from jupyter_gpuckpt.errors import FreezeFailed
from jupyter_gpuckpt.server.kernels.kernel_listener import KernelListener
from jupyter_gpuckpt.server.messages.comms import SavedComms
from jupyter_gpuckpt.server.policies import restarts
from jupyter_gpuckpt.wire import calls
from jupyter_gpuckpt.wire.protocol import Kernel
from jupyter_gpuckpt.wire.states import KernelState

ASIDE = "/kernels/k/former"


class World:
    """Daemon, operations and manager of the kernel `k`, which record what is asked of them."""

    def __init__(self, *, gpu_bytes=0, state=KernelState.RUNNING, failing=""):
        self.done, self._gpu_bytes, self._failing = [], gpu_bytes, failing
        self.served = SimpleNamespace(
            kernel_id="k",
            kernel=Kernel("k", state, "owner"),
            state=state,
            changed=True,
            has_agent=False,
            comms=SavedComms(),
            peer_access_is_off=False,
            before_restart="",
            restart_lost="",
            is_former_kept=False,
            output=SimpleNamespace(is_in_cell=False, description=dict),
            provisioner=SimpleNamespace(set_aside=lambda: self._do("forget")),
            hold=lambda: lambda: None,
        )
        self.tracked = SimpleNamespace(result=self._result)

    def _do(self, what):
        self.done.append(what)
        if what == self._failing:
            raise FreezeFailed(f"It cannot {what}.", hint="Wait.")

    async def send(self, call):
        if call.path == calls.kernel("k").path:
            return Kernel("k", self.served.state, "owner", gpu_bytes=self._gpu_bytes)
        assert (call.method, call.path) == ("PUT", ASIDE)
        assert call.body.save.cause == "restart"
        self._do("set aside")
        return None

    async def park(self, kernel_id):
        return kernel_id

    async def _result(self, operation):
        self._do("park")

    async def described(self, kernel_id):
        return "notebook.ipynb", {}

    def stop_restarter(self):
        self.done.append("watch no more")

    def start_restarter(self):
        self.done.append("watch")


@pytest.fixture
def restarted(monkeypatch):
    """Return a function that asks the policy before a restart."""

    def ask(world, keep_seconds=60):
        monkeypatch.setattr(restarts, "manager_of", lambda *_: world)
        policy = restarts.Restarts(
            SimpleNamespace(served={"k": world.served}, daemon=world),
            None,
            world,
            KernelListener(),
            keep_seconds=keep_seconds,
            log=logging.getLogger("test"),
        )
        return asyncio.run(policy.before_restart("k"))

    return ask


@pytest.mark.parametrize("state", [KernelState.RUNNING, KernelState.PARKED])
def test_gpu_memory_leaves_the_gpu_before_the_new_process_comes(restarted, state):
    world = World(gpu_bytes=1, state=state)  # a parked one may have its context there
    assert restarted(world)
    assert world.done == ["watch no more", "park", "set aside", "forget"]
    assert world.served.is_former_kept


@pytest.mark.parametrize(
    "world", [World(), World(state=KernelState.PARKED)], ids=["none", "parked"]
)
def test_without_memory_on_the_gpu_nothing_is_moved(restarted, world):
    assert restarted(world)
    assert world.done == ["watch no more", "set aside", "forget"]


@pytest.mark.parametrize("failing", ["park", "set aside"])
def test_what_cannot_be_kept_is_told_and_restarted_as_ever(restarted, failing):
    world = World(gpu_bytes=1, failing=failing)
    assert not restarted(world)
    assert world.done[-1] == "watch"
    assert "forget" not in world.done
    assert world.served.restart_lost == f"It cannot {failing}. Wait."
    assert not world.served.is_former_kept


def test_nothing_is_kept_where_that_is_not_wanted(restarted):
    world = World()
    assert not restarted(world, keep_seconds=0)
    assert world.done == []
