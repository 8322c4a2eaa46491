"""Save, suspend and resume Jupyter kernels with their GPU memory."""

from __future__ import annotations

from typing import Any


def _jupyter_server_extension_points() -> list[dict[str, Any]]:
    """Where jupyter_server finds the extension; imported only when it asks."""
    from .server.extension import GpuCkptServer  # noqa: PLC0415 - importing the package must stay cheap

    return [{"module": "jupyter_gpuckpt", "app": GpuCkptServer}]


def _jupyter_labextension_paths() -> list[dict[str, str]]:
    """Where JupyterLab's development install finds the front end."""
    return [{"src": "labextension", "dest": "jupyter-gpuckpt"}]
