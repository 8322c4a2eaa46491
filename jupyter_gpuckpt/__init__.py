"""Save, suspend and resume Jupyter kernels with their GPU memory.

- `errors`: the errors of the project, one class per cause.
- `sessions`: sessions in Python.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

    __version__: str


def __getattr__(name: str) -> str:
    """Return `__version__`, which is read at its first use: importing the package must stay cheap."""
    if name != "__version__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from ._version import __version__  # noqa: PLC0415 - as above

    return __version__


def load_ipython_extension(shell: InteractiveShell) -> None:
    """Define the magic `%gpuckpt`: `%load_ext jupyter_gpuckpt`."""
    from .client.magics import load  # noqa: PLC0415 - importing the package must stay cheap

    load(shell)


def _jupyter_server_extension_points() -> list[dict[str, Any]]:
    """Return the server extension for jupyter_server; it is imported only here."""
    from .server.extension import GpuCkptServer  # noqa: PLC0415 - importing the package must stay cheap

    return [{"module": "jupyter_gpuckpt", "app": GpuCkptServer}]


def _jupyter_labextension_paths() -> list[dict[str, str]]:
    """Return the front end's location for JupyterLab's development install."""
    return [{"src": "labextension", "dest": "jupyter-gpuckpt"}]
