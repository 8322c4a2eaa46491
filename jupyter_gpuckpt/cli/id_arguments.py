"""Resolution of abbreviated ids of kernels and snapshots."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from ..errors import ConfigurationError, KernelNotFound, SnapshotNotFound
from ..wire import calls

if TYPE_CHECKING:
    from ..client import Client


def one_kernel(prefix: str, client: Client) -> str:
    """Return the id of the only kernel whose id begins with `prefix`. Raises KernelNotFound, ConfigurationError."""
    found = one_of(prefix, [kernel.kernel_id for kernel in client.send(calls.kernels())])
    if not found:
        raise KernelNotFound(
            f"There is no kernel whose id begins with {prefix!r}.",
            hint="`jupyter gpuckpt ps` lists the kernels.",
        )
    return found


def one_snapshot(prefix: str, ids: Iterable[str]) -> str:
    """Return the only one of `ids` that begins with `prefix`. Raises SnapshotNotFound, ConfigurationError."""
    found = one_of(prefix, ids)
    if not found:
        raise SnapshotNotFound(
            f"There is no snapshot whose id begins with {prefix!r}.",
            hint="`jupyter gpuckpt list` shows the snapshots.",
        )
    return found


def one_of(prefix: str, ids: Iterable[str]) -> str:
    """Return the only id that is `prefix` or begins with it; empty if there is none. Raises ConfigurationError for several."""
    known = set(ids)
    if prefix in known:
        return prefix
    found = sorted(one for one in known if prefix and one.startswith(prefix))
    if len(found) > 1:
        raise ConfigurationError(
            f"{prefix!r} is the beginning of {len(found)} ids: {', '.join(found[:4])}"
            f"{' ...' * (len(found) > 4)}.",
            hint="Give more of it.",
        )
    return found[0] if found else ""
