"""Mending of a restored tree before its tasks are let go: its facts are read, compared, and set again where they can be set."""

from __future__ import annotations

import logging
import struct
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress

from ...errors import CheckpointError
from ...host import processes
from ..injection.call_tables import Call, CallTables, Table
from ..injection.threads_held import ThreadsHeld
from ..tree.launch import pids, wait_until
from ..tree.standstill import all_stopped
from ..tree.tree import Tree
from . import (
    asked_facts,
    descriptor_facts,
    proc_facts,
    reading,
    terminal_queues,
    wording,
)
from .comparison import Changes, differences
from .fact_records import VERSION, Difference, Facts, ProcessFacts, decoded

logger = logging.getLogger(__name__)

_STOP_SECONDS = 10.0
_FAILURES = (OSError, ValueError, LookupError, OverflowError, struct.error, CheckpointError)


def mend(
    tree: Tree,
    facts: Callable[[], bytes],
    made: Collection[str] = (),
    own_sockets: Collection[str] = (),
) -> list[str]:
    """Compare the restored tree with the facts of its snapshot and set what can be set; return warnings of the rest.

    `facts`: reads them; none, if there were too many. `made`, `own_sockets`: see `Changes`.
    The tasks must be stopped. It never fails: errors are logged.
    """
    try:
        if not (data := facts()):
            return []
        before = decoded(data)
        _await_stopped(tree)
        lost = _fill_terminals(tree, before)
        if before.version != VERSION:
            return lost
        after = _read(tree, lost=before)
        found = differences(before, after, Changes(made, own_sockets))
        if was_set := _set(tree, before, found):
            again = {process.pid: process for process in _read(tree, was_set).processes}
            after.processes = [again.get(process.pid, process) for process in after.processes]
            found = differences(before, after, Changes(made, own_sockets))
        for one in found:
            logger.info("not as before: %s", one)
        return [*lost, *wording.sentences(found, before)]
    except Exception:  # whatever is wrong with a snapshot's facts, it can be resumed
        logger.exception("the processes of tree %d were not audited", tree.init_pid)
        return []


def _await_stopped(tree: Tree) -> None:
    """Wait until all tasks stand still: CRIU sends them SIGSTOP at its end, and held ones stop again when they are released."""
    wait_until(lambda: all(map(all_stopped, pids(tree))), timeout=_STOP_SECONDS)


def _fill_terminals(tree: Tree, before: Facts) -> list[str]:
    """Put back what waited in terminals; return warnings of what cannot be."""
    here = proc_facts.host_pids(pids(tree))
    return [
        f"After the resume, {len(queue.output) + len(queue.input)} bytes that waited in a terminal are missing."
        for queue in before.terminals
        if not terminal_queues.put(queue, here) and (queue.output or queue.input)
    ]


def _read(tree: Tree, only: Collection[int] | None = None, *, lost: Facts | None = None) -> Facts:
    """Read the facts of the tree, or of some of its processes. `lost`: set again what every restore changes, while threads are held."""
    answers: reading.Answers = {}
    known = {process.pid: process for process in lost.processes} if lost is not None else {}
    _await_stopped(tree)
    members = [pid for pid in pids(tree) if processes.state(pid) not in (None, "Z", "X")]
    for pid in members:
        if only is None or pid in only:
            with ThreadsHeld(pid) as held:
                _set_lost(held, known)
                answers |= reading.ask(held)
    descriptors = {pid: sorted(processes.descriptors(pid)) for pid in members}
    return reading.facts(reading.read(members, descriptors, only), answers)


def _set_lost(held: ThreadsHeld, known: Mapping[int, ProcessFacts]) -> None:
    """Set what every restore changes; what is not set is found by the comparison. `known`: the processes' former facts."""
    with suppress(*_FAILURES):
        first = held.tracee()
        ids = proc_facts.ids(proc_facts.look(held.pid, first.tid))
        if ids[0] in known and (calls := asked_facts.setting_lost(known[ids[0]].process)):
            with CallTables(first) as tables:
                tables.run(first, ids, Table(calls))


def _set(tree: Tree, before: Facts, found: list[Difference]) -> set[int]:
    """Set what differs, where that is possible; return the processes in which anything was."""
    here = proc_facts.host_pids(pids(tree))
    facts = {process.pid: process for process in before.processes}
    changed, calls = set[int](), defaultdict[int, dict[int, list[Call]]](lambda: defaultdict(list))
    for one in found:
        pid = here.get(one.pid)
        if pid is None or (one.before is None and one.after is None):
            continue
        try:
            values = facts[one.pid].of(one.kind).get(one.number, {})
            if wanted := asked_facts.setting(one.fact, values):
                calls[pid][one.number if one.kind == "thread" else one.pid] += wanted
                changed.add(pid)
            elif _set_one(one, pid, facts[one.pid], here):
                changed.add(pid)
        except _FAILURES as error:
            logger.info("%s was not set again: %s", one, error)
    for pid, by_thread in calls.items():
        with suppress(*_FAILURES):
            _make(pid, by_thread)
    return changed


def _set_one(one: Difference, pid: int, facts: ProcessFacts, here: Mapping[int, int]) -> bool:
    if one.kind == "process":
        return proc_facts.set_of_process(pid, one.fact, one.before or "0")
    if one.kind == "thread":
        tids = proc_facts.host_pids(processes.threads(pid))
        return proc_facts.set_of_thread(tids[one.number], one.fact, one.before or "0")
    values = facts.descriptors.get(one.number, {})
    return descriptor_facts.set_of_descriptor(pid, one.number, one.fact, values, here)


def _make(pid: int, calls: Mapping[int, list[Call]]) -> None:
    """Let the threads of a process make these calls. Raises OSError."""
    with ThreadsHeld(pid) as held, CallTables(held.tracee()) as tables:
        for tracee in held.tracees():
            ids = proc_facts.ids(proc_facts.look(pid, tracee.tid))
            if wanted := calls.get(ids[1]):
                table = Table(wanted)
                results = table.results(tables.run(tracee, ids, table))
                logger.info("thread %d was set again: %s", ids[1], results)
