"""A real hub whose users' servers are jobs of the real Slurm of these tests."""

from __future__ import annotations

import json
import signal

from tests.documented import block
from tests.engines.slurm_cluster import SlurmCluster
from tests.hub.conftest import Hub

#: The example of the documentation, and what differs here: users are no users of this machine, so their jobs run as root, each with a
#: home of its own. All nodes listen on 127.0.0.1.
CONFIG = """
{documented}
from jupyter_gpuckpt.hub import GpuCkptSlurmSpawner

class Job(GpuCkptSlurmSpawner):
    def user_env(self, env):
        return {{**env, "USER": "root", "SHELL": "/bin/bash", "HOME": self.req_homedir}}

    def _req_homedir_default(self):
        home = f"{{given['folder']}}/home/{{self.user.name}}"
        os.makedirs(home, exist_ok=True)
        return home

c.JupyterHub.spawner_class = Job
c.Spawner.cmd = [os.path.join(bin_dir, "jupyterhub-singleuser")]
c.BatchSpawnerBase.batchspawner_singleuser_cmd = f"{{sys.executable}} -m batchspawner.singleuser"
c.Spawner.environment = {{**given["environment"], "SLURM_CONF": {conf}}}
c.Spawner.poll_interval = 1
c.BatchSpawnerBase.exec_prefix = ""
c.SlurmSpawner.req_partition = "low"
c.SlurmSpawner.state_exechost_exp = "127.0.0.1"
"""


class SlurmHub(Hub):
    """The hub; `cluster` has its users' servers."""

    def __init__(self, cluster: SlurmCluster, more: str = "") -> None:
        filled = CONFIG.format(
            documented=block("jupyterhub.md", "python", "c.SlurmSpawner.req_partition"),
            conf=json.dumps(cluster.env["SLURM_CONF"]),
        )
        super().__init__(cluster.folder.parent, cluster.env, filled + more)
        self.cluster = cluster

    def job(self) -> dict[str, str]:
        """Return what Slurm says of the only server's job."""
        found = self.cluster("squeue", "--noheader", "--format=%i", "--partition=low").split()
        assert len(found) == 1, found
        return self.cluster.job(found[0])

    def log(self) -> str:
        """Return the ends of the logs of the hub, of Slurm and of the jobs."""
        jobs = sorted((self.folder / "home").glob("*/*.log"))
        texts = [path.read_text(errors="replace")[-3000:] for path in jobs]
        return "\n".join([super().log(), self.cluster.log(), *texts])

    def end(self) -> None:
        """End the hub; its jobs end with their nodes."""
        if self.process is not None and self.process.poll() is None:
            self.stop(signal.SIGKILL)
