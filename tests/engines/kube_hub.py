"""A real hub whose users' servers are pods, configured by the values of deploy/kubernetes for the chart."""

from __future__ import annotations

from pathlib import Path

from tests.engines.podman_api import IMAGE
from tests.engines.podman_cluster import GATEWAY, Cluster
from tests.hub.chart import document, settings_of
from tests.hub.conftest import Hub

#: What differs from a hub in a cluster: its address, how soon it sees that a pod has ended, and no listing of events.
CONFIG = """
for name, settings in %(settings)r.items():
    c[name].update(settings)
c.Spawner.ip = "0.0.0.0"
c.Spawner.environment = {"JUPYTERHUB_SINGLEUSER_APP": "jupyter-server"}
c.Spawner.poll_interval = 1
c.Spawner.http_timeout = 120
c.KubeSpawner.image_pull_policy = "Never"
c.KubeSpawner.events_enabled = False
c.JupyterHub.hub_connect_url = f"http://%(gateway)s:{given['hub_port']}"
"""


class KubeHub(Hub):
    """The hub; `cluster` has its pods."""

    def __init__(self, folder: Path, env: dict[str, str], cluster: Cluster) -> None:
        settings = settings_of(document("hub-values.yaml"))
        settings["KubeSpawner"]["image"] = IMAGE
        del settings["KubeSpawner"]["environment"]
        filled = CONFIG % {"settings": settings, "gateway": GATEWAY}
        super().__init__(folder, env | {"KUBECONFIG": str(cluster.kubeconfig)}, filled)
        self.cluster = cluster
        cluster.serve(self.direct_port)

    def log(self) -> str:
        """Return the last of what the hub and the pods have said."""
        return "\n".join([super().log(), *map(self.cluster.logs, self.cluster.names())])
