"""A real hub whose users' servers are containers of the image of this checkout."""

from __future__ import annotations

from pathlib import Path

from tests.documented import block
from tests.engines.podman_api import IMAGE, ROOT, PodmanApi
from tests.hub.conftest import Hub

#: The example of the documentation, and what differs here: nothing of these tests listens on another address than 127.0.0.1, so
#: containers share the machine's network, and each server has a port. Until the server listens on it, kernels of tests that run
#: beside this one take ports by chance, so it is not one of those.
CONFIG = """
%(documented)s
import sys
sys.path.append("%(root)s")
from tests.ports import unused_port
from jupyter_gpuckpt.hub import GpuCkptDockerSpawner

class HostNetwork(GpuCkptDockerSpawner):
    async def get_ip_and_port(self):
        return "127.0.0.1", self.port

def choose_port(spawner):
    spawner.port = unused_port()

c.JupyterHub.spawner_class = HostNetwork
c.Spawner.pre_spawn_hook = choose_port
c.Spawner.cmd = ["jupyterhub-singleuser"]
c.Spawner.environment = {"JUPYTERHUB_SINGLEUSER_APP": "jupyter-server"}
c.Spawner.poll_interval = 1
c.DockerSpawner.image = "%(image)s"
c.DockerSpawner.network_name = "host"
c.DockerSpawner.use_internal_ip = True
(home,) = c.DockerSpawner.volumes.values()
c.DockerSpawner.volumes = {"gpuckpt-{username}": home}
c.DockerSpawner.client_kwargs = {"base_url": "%(url)s"}
%(more)s
"""


class DockerHub(Hub):
    """The hub; `podman` has its containers."""

    def __init__(
        self, folder: Path, env: dict[str, str], podman: PodmanApi, more: str = ""
    ) -> None:
        documented = block("jupyterhub.md", "python", "c.DockerSpawner.volumes")
        words = {
            "documented": documented,
            "root": ROOT,
            "image": IMAGE,
            "url": podman.url,
            "more": more,
        }
        filled = CONFIG % words
        super().__init__(folder, env, filled)
        self.podman = podman

    def container(self, user: str) -> str:
        """Return the name of a user's container."""
        return f"jupyter-{user}"
