"""The error codes, from the classes of errors and the table of statuses."""

from __future__ import annotations

from jupyter_gpuckpt.errors import GpuCkptError, record_of, subclasses
from jupyter_gpuckpt.wire.statuses import exit_code, http_status

from .markdown import code, table


def page() -> str:
    """Return the table of codes; the page about troubleshooting has an entry for each."""
    rows = [_row(kind) for kind in subclasses()]
    unexpected = record_of(RuntimeError()).code
    status, leaves = str(http_status(GpuCkptError)), str(exit_code(GpuCkptError))
    rows.append((_link(unexpected), "A defect of jupyter-gpuckpt.", status, leaves, ""))
    return table(["Code", "Meaning", "HTTP", "Exit", "Try again"], rows, align="llrr")


def _row(kind: type[GpuCkptError]) -> tuple[str, str, str, str, str]:
    meaning = (kind.__doc__ or "").strip().splitlines()[0]
    again = "yes" if kind.retryable else ""
    return _link(kind.code), meaning, str(http_status(kind)), str(exit_code(kind)), again


def _link(name: str) -> str:
    return f"[{code(name)}](../troubleshooting.md#{name})"
