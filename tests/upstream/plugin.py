"""The pytest plugin for upstream suites: every kernel must run under the engine, and the deviations are applied.

It is loaded by name beside the suite's own plugins; `Run` in `running.py` says what it is told in the environment. What it
sees goes to the file that is named there (a JSON object), and launches to one beside it.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections import Counter
from functools import partial
from pathlib import Path

import pytest
from gpuckpt_provisioner import GpuCkptProvisioner
from jupyter_client.provisioning.factory import KernelProvisionerFactory
from jupyter_client.provisioning.local_provisioner import LocalProvisioner
from jupyter_server.serverapp import ServerApp
from jupyter_server.services.kernels.kernelmanager import AsyncMappingKernelManager
from tornado.httpclient import HTTPClientError
from traitlets.config import Config

from jupyter_gpuckpt.client import Client
from jupyter_gpuckpt.errors import DaemonUnavailable
from jupyter_gpuckpt.server.extension import PROVISIONER
from jupyter_gpuckpt.server.kernels.kernel_manager import GpuCkptKernels
from jupyter_gpuckpt.server.messages.gate import GatedConnection
from jupyter_gpuckpt.wire import calls
from jupyter_gpuckpt.wire.states import KernelState

from . import batch_runs
from .suites import DEVIATIONS, Change, Suite, Variant, suite_named

SUITE: Suite = suite_named(os.environ["GPUCKPT_UPSTREAM_SUITE"])
VARIANT = Variant(os.environ["GPUCKPT_UPSTREAM_VARIANT"])
REPORT = Path(os.environ["GPUCKPT_UPSTREAM_REPORT"])
LAUNCHES = REPORT.with_suffix(".launches")
DEFAULT_PROVISIONER_ENV = "JUPYTER_DEFAULT_PROVISIONER_NAME"


class Seen:
    """What happened so far."""

    def __init__(self) -> None:
        self.outcomes: Counter[str] = Counter()
        self.failed: dict[str, None] = {}
        self.changed: Counter[str] = Counter()
        #: Launches that must not be, in the test that runs.
        self.refused: list[str] = []
        #: Whether the test that runs may use other provisioners.
        self.others_allowed = False

    def launch(self, how: str, why: str = "") -> None:
        """Note a launch, in a file: some suites launch kernels in processes that they fork."""
        if how == "other" and self.others_allowed:
            how = "allowed"
        elif how != "engine":
            self.refused.append(f"{how}: {why}")
        with LAUNCHES.open("a") as file:
            file.write(json.dumps({"how": how, "why": why}) + "\n")


_seen = Seen()


def pytest_configure(config):
    # Upstream runs such tests again when they fail; here they must pass.
    config.addinivalue_line("markers", "flaky")
    _wrap_launches()
    if VARIANT is Variant.EXTENSION and SUITE.has_server:
        _load_extension()
    if VARIANT is Variant.BATCH_RUNS:
        batch_runs.replace(SUITE.distribution)
    _choose_provisioner()


def pytest_runtest_logreport(report):
    if report.when == "call" or report.outcome != "passed":
        _seen.outcomes[report.outcome] += 1
    if report.outcome == "failed":
        _seen.failed[report.nodeid] = None


def pytest_deselected(items):
    _seen.outcomes["deselected"] += len(items)


def pytest_sessionfinish(session):
    seen = {"outcomes": _seen.outcomes, "changed": _seen.changed, "failed": list(_seen.failed)}
    REPORT.write_text(json.dumps(seen))


# ---- launches --------------------------------------------------------------------------------------------------------


def _wrap_launches() -> None:
    ours, stock = GpuCkptProvisioner.launch_kernel, LocalProvisioner.launch_kernel

    async def launch_ours(self, cmd, **arguments):
        info = await ours(self, cmd, **arguments)
        _seen.launch("plain" if self.plain_reason else "engine", self.plain_reason)
        return info

    async def launch_stock(self, cmd, **arguments):
        info = await stock(self, cmd, **arguments)
        if not isinstance(self, GpuCkptProvisioner):
            _seen.launch("other", type(self).__name__)
        return info

    GpuCkptProvisioner.launch_kernel = launch_ours
    LocalProvisioner.launch_kernel = launch_stock


@pytest.fixture(autouse=True)
def gpuckpt_no_plain_launch():
    yield
    refused, _seen.refused = _seen.refused, []
    assert not refused, f"launched without the engine: {refused}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown():
    """When all that the test changed is put back.

    Tests have directories of their own, but not a store: what a server suspended at its stop would be there.
    """
    result = yield
    _choose_provisioner()
    if VARIANT is Variant.EXTENSION and SUITE.has_server:
        _forget_kernels()
    return result


def _forget_kernels() -> None:
    try:
        client = Client.connect(start=False)
    except DaemonUnavailable:
        return
    with client:
        kernels = client.send(calls.kernels())
        for kernel in kernels:
            client.send(calls.kill(kernel.kernel_id))
    assert {kernel.state for kernel in kernels} <= {KernelState.SUSPENDED}, kernels


def _choose_provisioner() -> None:
    """Where there is no server, its extension's choice is made here; in variant A the environment makes it."""
    KernelProvisionerFactory.clear_instance()
    if VARIANT is Variant.EXTENSION and not SUITE.has_server:
        KernelProvisionerFactory.instance().default_provisioner_name = PROVISIONER


# ---- the server's extension ------------------------------------------------------------------------------------------


def _load_extension() -> None:
    """Enable the extension in whatever configuration a test gives its server, and see that it is in place."""
    initialize = ServerApp.initialize

    def with_extension(self, *arguments, **keywords):
        # Tests replace the fixture jp_server_config, and some pass a configuration of their own.
        # The suite waits for a culled kernel for a few seconds, and the notice to open pages is given a minute before.
        self.update_config(
            Config(
                {
                    "ServerApp": {"jpserver_extensions": {"jupyter_gpuckpt": True}},
                    "GpuCkptServer": {"idle_notice": 0},
                }
            )
        )
        initialize(self, *arguments, **keywords)
        # For a manager without asyncio the extension chooses the provisioner, and no more.
        if isinstance(self.kernel_manager, AsyncMappingKernelManager):
            assert isinstance(self.kernel_manager, GpuCkptKernels)
            assert issubclass(self.kernel_websocket_connection_class, GatedConnection)
            _seen.changed["servers with the extension"] += 1

    ServerApp.initialize = with_extension


# ---- deviations ------------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def gpuckpt_deviations(request, monkeypatch):
    changes = {
        deviation.change
        for deviation in DEVIATIONS
        if deviation.applies(
            VARIANT, request.module.__name__, request.fixturenames, request.node.nodeid
        )
    }
    _seen.changed.update(changes)
    _seen.others_allowed = Change.OTHER_PROVISIONERS in changes
    if _seen.others_allowed:
        monkeypatch.delenv(DEFAULT_PROVISIONER_ENV, raising=False)
        KernelProvisionerFactory.clear_instance()
    if Change.CULLED_IS_SUSPENDED in changes:
        seconds = request.module.CULL_TIMEOUT + request.module.CULL_INTERVAL
        monkeypatch.setattr(request.module, "get_cull_status", partial(_is_suspended, seconds))
    if Change.STOCK_ENGINE in changes:
        batch_runs.use_stock_engine(monkeypatch)
    if Change.MOVED_IMPORT in changes:
        path = Path(request.module.get_notebook_path("broken2.ipynb"))
        text = path.read_text()
        path.write_text(
            text.replace("IPython.core.display import display", "IPython.display import display")
        )


#: Seconds by which a loaded machine may be late.
_LATE = 60


async def _is_suspended(seconds, kernel_id, fetch):
    """Whether a kernel is culled within the suite's `seconds`; one of ours must be suspended then, and not be gone.

    One that no page is connected to is waited for longer: a loaded machine may be late.
    """
    owner = getattr(ServerApp.instance().kernel_manager, "gpuckpt_owner", None)
    ours = owner is not None and kernel_id in owner.served
    state, tries, pause, left_alone = "", 0, 0.5, False
    while state == "suspending" or tries < (seconds + _LATE * left_alone) / pause:
        status, state, left_alone = await _state(kernel_id, fetch)
        if status == 404 or state == "suspended":
            assert ours == (state == "suspended")
            return True
        tries += 1
        await asyncio.sleep(pause)
    return False


async def _state(kernel_id, fetch):
    """Return the status of a request for the kernel, the state that it tells, and whether no page is connected."""
    try:
        reply = await fetch("api", "kernels", kernel_id, method="GET")
    except HTTPClientError as error:
        return error.code, "", False
    told = json.loads(reply.body)
    return reply.code, told["execution_state"], not told["connections"]
