"""Copies of kernels' records in the trees themselves: by them a daemon finds living trees that no record on the disk names.

Such a record was removed or damaged, or an older backup of the data directory was put back. Without the copy the tree would run on
unseen, and a resume would make a second one. A copy lies on the scratch of its tree. It is untrusted: the kernel can write there.
"""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from ...engine.settings import INIT
from ...engine.tree import launch as trees
from ...engine.tree.tree import Tree
from ...errors import GpuCkptError
from ...host import processes
from ...linux.foreign_files import open_regular
from ...wire import decoding
from ...wire.ids import is_id
from ...wire.manifest_records import SCRATCH
from .kernel_records import KernelRecord, Records
from .ready_trees import prefix

_NAME = "record"
_MAX_BYTES = 16 << 20
#: The index of the exit path in init's arguments (`launch.start_namespaces`).
_EXIT_PATH = 3

_log = logging.getLogger(__name__)


class UnnamedTree(NamedTuple):
    """A living tree that no record on the disk names, by its init. `start`: as in `Tree.init_start`."""

    kernel_id: str
    init_pid: int
    start: int | None
    exit_path: str

    @property
    def alive(self) -> bool:
        """Whether its init still runs."""
        return processes.still_alive(self.init_pid, self.start)


def write(tree: Tree, encoded: bytes) -> None:
    """Replace the copy of a tree's record; never raises, because the record on the disk is what counts."""
    path = tree.scratch / _NAME
    new = path.with_name(f"{_NAME}.{secrets.token_hex(4)}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with os.fdopen(os.open(new, flags, 0o600), "wb") as file:
            file.write(encoded)
        new.replace(path)
    except OSError as error:  # the tree has ended, or there is no memory
        _log.debug("the copy of a record cannot be written: %s", error)


def adopt(
    records: Records, found: list[KernelRecord], others: Collection[Tree]
) -> tuple[list[KernelRecord], list[UnnamedTree]]:
    """Add the records of living trees that no record names to the records `found` of this place, in place of outdated ones.

    `others`: the living trees that belong to no record. The second result has the trees without a usable copy.
    """
    left = []
    for tree in _unnamed(records, found, others):
        is_ready = tree.kernel_id.startswith(prefix(records.place))
        copy = _copy(tree, is_ready=is_ready)
        if is_ready and copy is None:
            _log.info("ending process %d, a ready copy of a killed daemon", tree.init_pid)
            trees.kill_init(tree.init_pid)
            continue
        kernel_id = copy.kernel_id if copy is not None else tree.kernel_id
        if copy is not None and copy.place != records.place:
            continue  # its own daemon knows it
        now = next((one for one in found if one.kernel_id == kernel_id), None)
        is_free = now is None or now.tree is None or not trees.alive(now.tree)
        if copy is not None and is_free and _is_claimed(records, copy):
            _log.warning(
                "kernel %s runs as process %d, but its record was missing or outdated",
                kernel_id,
                tree.init_pid,
            )
            found = [*(one for one in found if one is not now), copy]
        else:
            _log.error(
                "process %d belongs to kernel %s, but no record names it; `kill -9 %d` ends it",
                tree.init_pid,
                kernel_id,
                tree.init_pid,
            )
            left.append(tree)
    return found, left


def _is_claimed(records: Records, record: KernelRecord) -> bool:
    try:
        records.claim(record.kernel_id)
    except GpuCkptError as error:
        _log.error("%s %s", error, error.hint)
        return False
    return True


def _unnamed(
    records: Records, found: list[KernelRecord], others: Collection[Tree]
) -> Iterator[UnnamedTree]:
    """Yield this data directory's living trees that no record names, the newest first."""
    named = {record.exit_path for record in (*found, *records.of_others())}
    named.update(tree.exit_path for tree in others)
    living = [tree for tree in _inits(records.exits) if tree.exit_path not in named]
    yield from sorted(living, key=lambda tree: -(tree.start or 0))


def _inits(exits: Path) -> Iterator[UnnamedTree]:
    for pid in processes.every():
        arguments = processes.arguments(pid)
        if len(arguments) <= _EXIT_PATH or Path(arguments[0]).name != INIT.name:
            continue
        exit_path = Path(arguments[_EXIT_PATH])
        is_ours = (
            exit_path.parent.resolve() == exits.resolve() and processes.uid(pid) == os.geteuid()
        )
        # The keeper has the same arguments; PID 1 of a PID namespace is the init.
        if is_ours and processes.nspid(pid) == 1 and not processes.is_ending(pid):
            kernel_id = exit_path.name.rpartition("-")[0]
            yield UnnamedTree(kernel_id, pid, processes.start_time(pid), str(exit_path))


def _copy(tree: UnnamedTree, *, is_ready: bool) -> KernelRecord | None:
    """Return the record on a tree's scratch; None if there is none, or one that is not of this tree.

    `is_ready`: the tree was a ready copy. The kernel that it has become, if it has, is named by the record alone.
    """
    path = f"/proc/{tree.init_pid}/root{SCRATCH}/{_NAME}"
    try:
        with os.fdopen(open_regular(path), "rb") as file:
            record = decoding.from_json(file.read(_MAX_BYTES), KernelRecord)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError) as error:
        _log.error("the copy of the record of kernel %s cannot be read: %s", tree.kernel_id, error)
        return None
    its = record.tree
    kernel_id = tree.kernel_id if is_ready and is_id(record.kernel_id) else record.kernel_id
    named = (kernel_id, its and its.init_pid, its and its.init_start, record.exit_path)
    return record if named == tuple(tree) else None
