"""The ways of nbclient and papermill to execute a notebook, replaced by batch runs."""

from __future__ import annotations

import uuid

import nbclient
import nbclient.client
import pytest
from jupyter_core.utils import run_sync
from papermill.engines import NBClientEngine, papermill_engines

from jupyter_gpuckpt.headless.notebook_client import BatchClient
from jupyter_gpuckpt.headless.papermill_engine import GpuCkptEngine
from jupyter_gpuckpt.headless.preparing import prepared
from jupyter_gpuckpt.wire import daemon_settings

_Stock = nbclient.client.NotebookClient


class RunClient(BatchClient):
    """nbclient's client, whose `execute` is a run of its own unless the test brings a kernel manager."""

    async def async_execute(self, reset_kc=False, **arguments):
        brings_its_own = self.km is not None or self.kernel_manager_class.__module__ != _MANAGERS
        goes_on_later = reset_kc or "cleanup_kc" in arguments
        if brings_its_own or goes_on_later:
            return await _Stock.async_execute(self, reset_kc, **arguments)
        settings = daemon_settings.from_environment()
        identity = f"upstream-{uuid.uuid4()}"
        with prepared(self.nb, identity, settings, kernel_name=self.kernel_name) as manager:
            self.km = manager
            try:
                return await super().async_execute(reset_kc, **arguments)
            finally:
                manager.disconnect()
                self.km = self.kc = None

    execute = run_sync(async_execute)

    async def _async_cleanup_kernel(self):
        if hasattr(self.km, "is_stopping"):
            await super()._async_cleanup_kernel()
        else:
            await _Stock._async_cleanup_kernel(self)

    _cleanup_kernel = run_sync(_async_cleanup_kernel)


_MANAGERS = "jupyter_client.manager"


def replace(distribution: str) -> None:
    """Put ours into the place of theirs, before tests import it: papermill's engine, or nbclient's client."""
    if distribution == "papermill":
        for name in (None, "nbclient"):
            papermill_engines.register(name, GpuCkptEngine)
    else:
        nbclient.NotebookClient = nbclient.client.NotebookClient = RunClient


def use_stock_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put papermill's own engine back for a test."""
    engines = {**papermill_engines._engines, None: NBClientEngine}
    monkeypatch.setattr(papermill_engines, "_engines", engines)
