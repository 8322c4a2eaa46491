"""papermill's engine `gpuckpt`. papermill imports this module with any engine, so slow imports are delayed until the first use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nbformat import NotebookNode


class GpuCkptEngine:
    """An engine whose kernels outlive papermill: a repeated call with the same output continues where the last one ended."""

    @classmethod
    def execute_notebook(cls, nb: NotebookNode, kernel_name: str, **arguments: Any) -> NotebookNode:  # noqa: ANN401 - papermill's
        """Execute a notebook. `gpuckpt_lose_at_most`: how much work may be lost, in seconds or as "10m"."""
        from .papermill_client import Engine  # noqa: PLC0415 - heavy, and papermill itself is just being imported

        executed: NotebookNode = Engine.execute_notebook(nb, kernel_name, **arguments)
        return executed

    @classmethod
    def nb_kernel_name(cls, nb: NotebookNode, name: str | None = None) -> str:
        """Return the name of the kernel that the notebook asks for."""
        from papermill.utils import nb_kernel_name  # noqa: PLC0415 - papermill itself is just being imported

        return str(nb_kernel_name(nb, name))

    @classmethod
    def nb_language(cls, nb: NotebookNode, language: str | None = None) -> str:
        """Return the language of the notebook's cells."""
        from papermill.utils import nb_language  # noqa: PLC0415 - papermill itself is just being imported

        return str(nb_language(nb, language))
