"""The spawner for servers that are processes of the hub's machine."""
# jupyterhub carries no types:
# mypy: allow-untyped-decorators

from __future__ import annotations

from jupyterhub.spawner import LocalProcessSpawner
from traitlets import default

from ..linux.ports import HeldPorts
from .spawner import GpuCkptSpawnerMixin


class GpuCkptLocalProcessSpawner(GpuCkptSpawnerMixin, LocalProcessSpawner):  # type: ignore[misc]
    """LocalProcessSpawner with the time that a suspend takes.

    JupyterHub sends a server SIGINT, then SIGTERM after `interrupt_timeout`, then SIGKILL after `term_timeout`.

    JupyterHub chooses a server's port; the server listens there seconds later. When many servers start at the same time, that may be
    half a minute, and one of the many kernels' ports might be the same. So the port is held from its choice on.
    """

    port: int
    #: The port that was chosen here; the configuration may have another one.
    _chosen_port = 0
    _held: HeldPorts | None = None

    @default("interrupt_timeout")
    def _default_interrupt_timeout(self) -> int:
        return self.stop_seconds

    async def start(self) -> object:
        """Start the server, on a port that no other program gets before the server listens there."""
        self._release()
        if self.port in {0, self._chosen_port}:
            self._held = HeldPorts.free(1)
            [self._chosen_port] = self._held.ports
            self.port = self._chosen_port
        try:
            return await super().start()
        except BaseException:
            self._release()
            raise

    async def stop(self, now: bool = False) -> None:
        """Stop the server and release its port."""
        try:
            await super().stop(now)
        finally:
            self._release()

    def _release(self) -> None:
        if self._held is not None:
            self._held.release()
            self._held = None

    def check_configuration(self) -> None:
        """Refuse timeouts whose sum is less than a suspend may take."""
        self.require_time(
            "c.LocalProcessSpawner.interrupt_timeout and term_timeout together",
            self.interrupt_timeout + self.term_timeout,
        )
