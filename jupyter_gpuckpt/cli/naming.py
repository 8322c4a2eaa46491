"""Resolution of the arguments that name kernels and snapshots: ids and beginnings of them, notebooks, titles, `latest`."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from ..errors import ConfigurationError, KernelNotFound, SnapshotNotFound
from ..wire import calls
from ..wire.protocol import Kernel
from ..wire.snapshot_records import Snapshot
from . import printing, summary

if TYPE_CHECKING:
    from ..client import Client

#: The name of the newest snapshot of all; after a kernel's name and a colon, of the newest of that kernel.
LATEST = "latest"
#: The most candidates that an error lists.
_SHOWN = 10


def one_kernel(text: str, client: Client) -> str:
    """Return the id of the only kernel that `text` names. Raises KernelNotFound, ConfigurationError."""
    found = kernel_among(text, client.send(calls.kernels()))
    if not found:
        raise KernelNotFound(
            f"There is no kernel {text!r}: no id begins with that, and no notebook's name has it.",
            hint="`jupyter gpuckpt ps` lists the kernels.",
        )
    return found


def kernel_among(text: str, kernels: list[Kernel]) -> str:
    """Return the id of the only one of `kernels` that `text` names, empty if there is none. Raises ConfigurationError for several."""
    known = {kernel.kernel_id: kernel for kernel in kernels}

    def line(kernel_id: str) -> str:
        kernel = known[kernel_id]
        text = f"{kernel_id}  {kernel.state:<10}  {printing.printable(kernel.name)}"
        origin = kernel.parent_snapshot_id
        return f"{text}, branched from snapshot {origin}" if origin else text

    return one_of(text, {one.kernel_id: one.name for one in known.values()}, line)


def one_snapshot(text: str, snapshots: list[Snapshot]) -> str:
    """Return the id of the only one of `snapshots`, newest first, that `text` names. Raises SnapshotNotFound, ConfigurationError."""
    known = {one.snapshot_id: one for one in snapshots}
    found = latest_of(text, snapshots) or one_of(
        text,
        titles_of(snapshots),
        lambda one: summary.of_snapshot(known[one], now=time.time()),
    )
    if not found:
        raise SnapshotNotFound(
            f"There is no snapshot {text!r}: no id begins with that, and no title has it.",
            hint="`jupyter gpuckpt list` shows the snapshots.",
        )
    return found


def kernel_or_snapshot(text: str, kernels: list[Kernel], snapshots: list[Snapshot]) -> str:
    """Return the id of the kernel or snapshot that `text` names; empty if there is none. Raises ConfigurationError for several.

    A kernel that is there comes before snapshots, and before kernels that only have snapshots.
    """
    return (
        latest_of(text, snapshots)
        or kernel_among(text, kernels)
        or one_of(text, {**titles_of(snapshots), **kernels_of(snapshots)})
    )


def snapshot_of(wanted: str, snapshots: list[Snapshot]) -> Snapshot | None:
    """Return the snapshot of this id, or the newest one of the kernel of this id; None if there is none. `snapshots`: newest first."""
    return next((one for one in snapshots if wanted in {one.snapshot_id, one.kernel_id}), None)


def neither(text: str) -> KernelNotFound:
    """Return the error for a text that names neither a kernel nor a snapshot."""
    return KernelNotFound(
        f"There is no kernel and no snapshot {text!r}.",
        hint="`jupyter gpuckpt ps` lists the kernels, `jupyter gpuckpt list` the snapshots.",
    )


def latest_of(text: str, snapshots: list[Snapshot]) -> str:
    """Return the id of the snapshot that `latest` or `KERNEL:latest` names; empty if `text` is neither, or there is none."""
    kernel, _, word = text.rpartition(":")
    if word != LATEST:
        return ""
    wanted = one_of(kernel, kernels_of(snapshots)) if kernel else ""
    ids = (one.snapshot_id for one in snapshots if one.kernel_id == wanted or not kernel)
    return next(ids, "")


def titles_of(snapshots: list[Snapshot]) -> dict[str, str]:
    """Return the titles of snapshots by id, as lists show them."""
    return {one.snapshot_id: one.heading for one in snapshots}


def kernels_of(snapshots: list[Snapshot]) -> dict[str, str]:
    """Return a name for each kernel of `snapshots` (newest first), by id; empty if a newer kernel has the same name."""
    names: dict[str, str] = {}
    taken: set[str] = set()
    for one in snapshots:
        if one.kernel_id not in names:
            names[one.kernel_id] = "" if one.name in taken else one.name
            taken.add(one.name)
    return names


def one_of(text: str, names: Mapping[str, str], shown: Callable[[str], str] | None = None) -> str:
    """Return the only one of the ids in `names` that `text` names; empty if there is none. Raises ConfigurationError for several.

    `names`: a name for each id; `shown`: the line of an error about one of the candidates.
    """
    found = fitting(text, names)
    if len(found) > 1:
        line = shown or (lambda one: f"{one}  {printing.printable(names[one])}".rstrip())
        raise ConfigurationError(
            f"{text!r} can mean any of {len(found)}:",
            hint="Give more of the name, or an id.",
            details="\n".join([*map(line, found[:_SHOWN]), *["..."] * (len(found) > _SHOWN)]),
        )
    return found[0] if found else ""


def fitting(text: str, names: Mapping[str, str]) -> list[str]:
    """Return the ids that `text` names: a whole id, else whole names, else all whose id begins with it or whose name has it.

    The whole name of a notebook is its path, or the last part of it, with or without its suffix.
    """
    if not text or text in names:
        return [text] * bool(text)
    lower = text.lower()
    return [one for one, name in names.items() if text in _whole(name)] or [
        one for one, name in names.items() if one.startswith(text) or lower in name.lower()
    ]


def _whole(name: str) -> tuple[str, str, str]:
    path = PurePosixPath(name)
    return name, path.name, path.stem
