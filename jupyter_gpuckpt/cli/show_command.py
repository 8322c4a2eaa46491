"""The command `jupyter gpuckpt show`, which shows one snapshot."""

from __future__ import annotations

import time
from argparse import Namespace
from collections import Counter
from collections.abc import Iterator
from typing import Any

from ..wire import calls
from ..wire.manifest_records import Variable
from ..wire.snapshot_records import Snapshot
from . import printing
from .daemon_calls import daemon
from .naming import one_snapshot
from .remote.upload_command import as_text

_WIDTH = 10


def run(args: Namespace) -> int:
    """Print a summary of a snapshot, or with --json its whole record without secrets."""
    with daemon() as client:
        snapshots = client.send(calls.snapshots())
        snapshot_id = one_snapshot(args.snapshot, snapshots)
        record = client.send(calls.manifest_summary(snapshot_id))
    info = next(one for one in snapshots if one.snapshot_id == snapshot_id)
    text = "\n".join(of_snapshot(info, record, now=time.time()))
    printing.result({"snapshot": record}, text, as_json=args.json)
    return 0


def of_snapshot(info: Snapshot, record: dict[str, Any], *, now: float) -> Iterator[str]:
    """Yield the lines about a snapshot. `record`: the summary of its manifest."""
    yield f"Snapshot {info.snapshot_id}"
    for title, value in _fields(info, record, now):
        if value:
            yield f"  {title:<{_WIDTH}}{printing.printable(value)}"
    if info.variables:
        yield "\nIts largest variables:"
        yield printing.table(
            ["NAME", "TYPE", "SIZE", "VALUE"], list(map(_variable, info.variables)), right={"SIZE"}
        )


def _fields(info: Snapshot, record: dict[str, Any], now: float) -> Iterator[tuple[str, str]]:
    size, sizes, host = printing.size, info.sizes, record["host"]
    yield "title", info.heading
    yield "note", info.note
    ended = "" if info.kernel_live else ", ended"
    yield "kernel", f"{info.name or '-'} ({info.kernel_id}{ended})"
    local = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(info.created))
    yield "taken", f"{local} ({printing.age(now - info.created)}), by {_cause(info)}"
    gpu = f", {size(sizes.gpu_bytes)} of it on the GPU" if sizes.gpu_bytes else ""
    yield "memory", f"{size(sizes.raw_bytes)}{gpu}"
    yield "on disk", f"{size(sizes.stored_bytes)}, {size(sizes.new_bytes)} of it new then"
    took = printing.duration(info.seconds)
    paused = (
        ""
        if info.reason == "suspend"
        else f"; the kernel was paused for {printing.duration(info.frozen_seconds)}"
    )
    yield "took", f"{took}{paused}"
    yield "pinned", "yes: no rule deletes it" if info.pinned else "no"
    yield "needed", "yes: it is a suspended kernel" if info.needed else ""
    yield "remotes", as_text(info) if info.uploads or info.remote_only is not None else ""
    # The root of the tree is the engine's own.
    pids = {one["pid"] for one in record["processes"]}
    own = (one["name"] for one in record["processes"] if one["parent"] in pids)
    yield "processes", _counted(own)
    yield "files", ", ".join(record["kept_files"])
    gpus = _counted(one["name"] for one in host["gpus"])
    parts = [host["name"], f"Linux {host['kernel_release']}", host["driver_version"], gpus]
    yield "machine", ", ".join(part for part in parts if part)


def _cause(info: Snapshot) -> str:
    return info.reason if info.cause == "manual" else f"{info.reason} ({info.cause.value})"


def _counted(names: Iterator[str]) -> str:
    found = Counter(names)
    return ", ".join(
        name if number == 1 else f"{number} x {name}" for name, number in found.items()
    )


def _variable(one: Variable) -> list[str]:
    return [one.name, one.kind, printing.size(one.bytes) if one.bytes else "-", one.summary or "-"]
