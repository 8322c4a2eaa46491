"""The check at the hub's start that the configuration of the chosen spawner leaves enough time for suspends."""
# jupyterhub carries no types:
# mypy: allow-untyped-calls

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

from jupyterhub.app import JupyterHub

from ..errors import ConfigurationError


def check_at_start(ours: type) -> None:
    """Check the configuration as soon as the hub of this process has read it; do nothing in a process without a hub."""
    if JupyterHub.initialized():
        # The hub sets this trait when it opens its database, after it has read the whole configuration.
        JupyterHub.instance().observe(partial(_check, ours), "session_factory")


def _check(ours: type, change: dict[str, Any]) -> None:
    """End the hub if the chosen spawner, of the class `ours`, refuses its configuration."""
    hub = change["owner"]
    if not issubclass(hub.spawner_class, ours):
        return
    try:
        # The constructors of some spawners use the name and the id of the user.
        spawner = hub.spawner_class(config=hub.config, user=SimpleNamespace(name="", id=0))
        spawner.check_all()
    except ConfigurationError as error:
        hub.exit(f"{error.message} {error.hint}")
    except Exception as error:  # a class of the administrator's may need a real user
        hub.log.warning(
            "The configuration of the spawner cannot be checked before a user starts a server: %r",
            error,
        )
