"""The spawner for servers that are processes of the hub's machine."""
# jupyterhub carries no types:
# mypy: allow-untyped-decorators

from __future__ import annotations

from jupyterhub.spawner import LocalProcessSpawner
from traitlets import default

from .spawner import GpuCkptSpawnerMixin


class GpuCkptLocalProcessSpawner(GpuCkptSpawnerMixin, LocalProcessSpawner):  # type: ignore[misc]
    """LocalProcessSpawner with the time that a suspend takes.

    JupyterHub sends a server SIGINT, then SIGTERM after `interrupt_timeout`, then SIGKILL after `term_timeout`.
    """

    @default("interrupt_timeout")
    def _default_interrupt_timeout(self) -> int:
        return self.stop_seconds

    def check_configuration(self) -> None:
        """Refuse timeouts whose sum is less than a suspend may take."""
        self.require_time(
            "c.LocalProcessSpawner.interrupt_timeout and term_timeout together",
            self.interrupt_timeout + self.term_timeout,
        )
