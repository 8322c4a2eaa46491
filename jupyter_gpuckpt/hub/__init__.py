"""A spawner for JupyterHub's configuration file that suspends the kernels of a server before it stops it.

from jupyter_gpuckpt.hub import with_suspend
c.JupyterHub.spawner_class = with_suspend("jupyterhub.spawner.LocalProcessSpawner")
"""

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

__all__ = ["GpuCkptSpawnerMixin", "template_path", "with_suspend"]
