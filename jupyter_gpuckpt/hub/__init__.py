"""A spawner for JupyterHub's configuration file that suspends the kernels of a server before it stops it.

from jupyter_gpuckpt.hub import with_suspend
c.JupyterHub.spawner_class = with_suspend("jupyterhub.spawner.LocalProcessSpawner")

Spawners for some engines are ready: `c.JupyterHub.spawner_class = "gpuckpt-docker"`, and the others of `_READY`.
"""

from importlib import import_module
from pathlib import Path

try:
    import jupyterhub as _jupyterhub  # noqa: F401 - asked for here, so that the answer is a sentence
except ModuleNotFoundError as error:
    if error.name != "jupyterhub":
        raise
    _MISSING = (
        "jupyter_gpuckpt.hub is for the environment in which JupyterHub runs, and jupyterhub is not installed in this one: "
        "pip install 'jupyter_gpuckpt[hub]'"
    )
    raise ImportError(_MISSING, name="jupyterhub") from error

from .spawner import GpuCkptSpawnerMixin, with_suspend

#: A value for `c.JupyterHub.template_paths`: its page about a server that is being stopped shows the reason for the wait.
template_path = str(Path(__file__).parent / "templates")

#: Spawner classes, each in a module that imports its engine. pyproject.toml names them for JupyterHub.
_READY = {
    "GpuCkptDockerSpawner": "docker",
    "GpuCkptLocalProcessSpawner": "local_process",
    "GpuCkptSlurmSpawner": "slurm",
    "GpuCkptSystemdSpawner": "systemd",
}

__all__ = ["GpuCkptSpawnerMixin", "template_path", "with_suspend"]


def __getattr__(name: str) -> type:
    """Return a spawner class; a hub that starts in this process checks its configuration before it is ready."""
    if name not in _READY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = import_module(f".{_READY[name]}", __name__)
    import_module(".start_check", __name__).request()
    found: type = getattr(module, name)
    return found
