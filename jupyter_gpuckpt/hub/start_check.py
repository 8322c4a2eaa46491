"""The check at the hub's start that the configuration of the chosen spawner leaves enough time for suspends."""
# jupyterhub carries no types:
# mypy: allow-untyped-calls

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from jupyterhub.app import JupyterHub

from ..errors import ConfigurationError
from .spawner import GpuCkptSpawnerMixin


def request() -> None:
    """Check the configuration once this process's hub has read it; do nothing where no hub starts."""
    if JupyterHub.initialized():
        # The hub sets this trait as it opens its database, after it has read the whole configuration.
        JupyterHub.instance().observe(_check, "session_factory")


def _check(change: dict[str, Any]) -> None:
    """End the hub if the chosen spawner refuses its configuration."""
    hub = change["owner"]
    if not issubclass(hub.spawner_class, GpuCkptSpawnerMixin):
        return
    # Some spawners put the user's name and id into names as they are constructed.
    spawner = hub.spawner_class(config=hub.config, user=SimpleNamespace(name="", id=0))
    try:
        spawner.check_configuration()
    except ConfigurationError as error:
        hub.exit(f"{error.message} {error.hint}")
