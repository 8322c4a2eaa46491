"""The spawner for servers that are processes of the hub's machine."""
# jupyterhub carries no types:
# mypy: allow-untyped-decorators

from __future__ import annotations

from jupyterhub.spawner import LocalProcessSpawner
from traitlets import default

from .spawner import GpuCkptSpawnerMixin


class GpuCkptLocalProcessSpawner(GpuCkptSpawnerMixin, LocalProcessSpawner):  # type: ignore[misc]
    """JupyterHub's own spawner with the time that a suspend takes.

    A server hears SIGINT first, SIGTERM after `interrupt_timeout`, and is killed after `term_timeout`.
    """

    @default("interrupt_timeout")
    def _default_interrupt_timeout(self) -> int:
        return self.stop_seconds

    def check_configuration(self) -> None:
        """Refuse timeouts that are shorter together than a suspend may take."""
        self.require_time(
            "c.LocalProcessSpawner.interrupt_timeout and term_timeout together",
            self.interrupt_timeout + self.term_timeout,
        )
