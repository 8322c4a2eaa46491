"""A spawner for JupyterHub's configuration file that suspends the kernels of a server before it stops it.

from jupyter_gpuckpt.hub import with_suspend
c.JupyterHub.spawner_class = with_suspend("jupyterhub.spawner.LocalProcessSpawner")

For some spawners there is a ready class, which has a name: `c.JupyterHub.spawner_class = "gpuckpt-docker"`. `_READY` lists the classes.

- `docker`: the spawner for servers in containers of Docker, or of podman by its Docker API.
- `local_process`: the spawner for servers that are processes of the hub's machine.
- `pod_spawner`: the spawner for servers in pods of Kubernetes.
- `pod_volumes`: which snapshots outlive their pod.
- `server_request`: the hub's requests to a user's server.
- `slurm`: the spawner for servers that are jobs of Slurm.
- `spawner`: a spawner that suspends all kernels of a server before it stops it, and reports them at the next start.
- `start_check`: the check at the hub's start that the configuration of the chosen spawner leaves enough time for suspends.
- `systemd`: the spawner for servers that are transient services of systemd.
- `turns`: turns for servers of one machine.
"""

from importlib import import_module
from pathlib import Path

try:
    import jupyterhub as _jupyterhub  # noqa: F401 - imported here for a clear error message
except ModuleNotFoundError as error:
    if error.name != "jupyterhub":
        raise
    _MISSING = (
        "jupyter_gpuckpt.hub is for the environment in which JupyterHub runs, and jupyterhub is not installed in this one: "
        "pip install 'jupyter-gpuckpt[hub]'"
    )
    raise ImportError(_MISSING, name="jupyterhub") from error

from .spawner import GpuCkptSpawnerMixin, with_suspend
from .start_check import check_at_start

#: A value for `c.JupyterHub.template_paths`: the hub's page about a server that is being stopped then says why that takes a while.
template_path = str(Path(__file__).parent / "templates")

#: The ready spawner classes and their modules, each of which imports its engine. pyproject.toml declares the names for JupyterHub.
_READY = {
    "GpuCkptDockerSpawner": "docker",
    "GpuCkptKubeSpawner": "pod_spawner",
    "GpuCkptLocalProcessSpawner": "local_process",
    "GpuCkptSlurmSpawner": "slurm",
    "GpuCkptSystemdSpawner": "systemd",
}

__all__ = ["GpuCkptSpawnerMixin", "template_path", "with_suspend"]


def __getattr__(name: str) -> type:
    """Return a ready spawner class, and make a hub that starts in this process check its configuration."""
    if name not in _READY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = import_module(f".{_READY[name]}", __name__)
    check_at_start(GpuCkptSpawnerMixin)
    found: type = getattr(module, name)
    return found
