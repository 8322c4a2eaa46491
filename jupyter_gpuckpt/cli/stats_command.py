"""The command `jupyter gpuckpt stats`, which shows how much disk space snapshots use."""

from __future__ import annotations

from argparse import Namespace

from ..wire import calls
from ..wire.plurals import counted
from ..wire.snapshot_records import StoreUsage
from . import printing
from .daemon_calls import daemon

_NUMBERS = frozenset({"SNAPSHOTS", "MEMORY", "STORED", "NOT SHARED"})


def run(args: Namespace) -> int:
    """Print the disk use of all snapshots and of those of each notebook."""
    with daemon(waits=True) as client:
        usage = client.send(calls.store())
    if args.json:
        printing.say_json({"store": usage})
        return 0
    printing.say("\n".join(_lines(usage)))
    rows = [
        [
            one.name or "-",
            str(one.snapshots),
            *map(printing.size, (one.raw_bytes, one.stored_bytes, one.exclusive_bytes)),
        ]
        for one in usage.by_name
    ]
    if rows:
        heads = ["NAME", "SNAPSHOTS", "MEMORY", "STORED", "NOT SHARED"]
        printing.say("\n" + printing.table(heads, rows, right=_NUMBERS))
        printing.note(
            "What notebooks share counts in STORED for each; deleting one frees NOT SHARED."
        )
    if damaged := usage.damaged:
        printing.warn(
            f"{counted(len(damaged), 'snapshot')} cannot be resumed: {', '.join(damaged)}."
            " `jupyter gpuckpt verify` names the damage."
        )
    return 0


def _lines(usage: StoreUsage) -> list[str]:
    size = printing.size
    lines = [
        f"{counted(usage.snapshots, 'snapshot')} in {printing.printable(usage.path)}",
        f"On disk:        {size(usage.disk_bytes)}, {size(usage.free_bytes)} free",
    ]
    if usage.raw_bytes:
        lines += [
            f"Deduplication:  {size(usage.raw_bytes)} -> {size(usage.unique_bytes)}",
            f"Compression:    {size(usage.unique_bytes)} -> {size(usage.stored_bytes)}",
        ]
    if usage.remote_snapshots:
        there = counted(usage.remote_snapshots, "snapshot")
        lines.append(f"In remotes only: {there}, {size(usage.remote_bytes)}")
    return lines
