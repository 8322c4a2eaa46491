"""Reading all facts of a tree whose tasks stand still."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress

from ...host import processes
from ..injection.call_tables import CallTables, Result
from ..injection.threads_held import ThreadsHeld
from . import asked_facts, descriptor_facts, proc_facts
from .records import Facts, ProcessFacts, Values, plain

logger = logging.getLogger(__name__)

#: The results of `asked_facts.calls` by thread.
Answers = dict[int, list[Result]]


def ask(held: ThreadsHeld) -> Answers:
    """Ask the held threads of a process. Those that cannot be asked are missing in the result."""
    found: Answers = {}
    with suppress(OSError, ValueError), CallTables(held.tracee()) as tables:
        for tracee in held.tracees():
            try:
                calls = asked_facts.calls(main=not found)
                found[tracee.tid] = tables.run(tracee, own_ids(tracee.tid), calls)
            except (OSError, ValueError) as error:
                logger.info("thread %d could not be asked for the audit: %s", tracee.tid, error)
    return found


def own_ids(tid: int) -> tuple[int, int]:
    """Return the ids of a thread's process and of the thread in their own PID namespace. Raises OSError if it has ended."""
    status = proc_facts.status(tid)
    return int(status["NStgid"].split()[-1]), int(status["NSpid"].split()[-1])


def read(
    pids: Collection[int],
    answers: Mapping[int, Sequence[Result]],
    descriptors: Mapping[int, Sequence[int]],
    only: Collection[int] | None = None,
) -> Facts:
    """Read the facts of processes that stand still, or of some of them. `descriptors`: the numbers of each process's descriptors.

    What cannot be read is missing.
    """
    facts, seen = Facts(), set[str]()
    # In the same order before and after: of an open file that several have, the first one has the facts.
    pids = sorted(pids, key=lambda pid: processes.nspid(pid) or 0)
    for pid in pids:
        if only is not None and pid not in only:
            seen |= descriptor_facts.sockets(pid, descriptors.get(pid, ()))
            continue
        try:
            facts.processes.append(_process(pid, answers, descriptors.get(pid, ()), seen))
        except ProcessLookupError:
            continue
        except Exception:  # whatever Linux shows, no save or resume fails because of it
            logger.exception("process %d is missing in the audit", pid)
    return facts


def _process(
    pid: int,
    answers: Mapping[int, Sequence[Result]],
    descriptors: Sequence[int],
    seen: set[str],
) -> ProcessFacts:
    status = proc_facts.status(pid)
    of_process, threads = proc_facts.of_process(pid, status), dict[int, Values]()
    for tid in processes.threads(pid):
        try:
            one = proc_facts.status(tid)
        except OSError:  # it has ended
            continue
        values = proc_facts.of_thread(tid, one)
        if answer := answers.get(tid):
            values |= asked_facts.of_thread(answer)
            of_process |= asked_facts.of_process(answer)
        threads[int(one["NSpid"].split()[-1])] = plain(values)
    files = descriptor_facts.of_process(pid, descriptors, seen)
    return ProcessFacts(
        int(status["NSpid"].split()[-1]),
        plain({"name": status["Name"]})["name"],
        plain(of_process),
        threads,
        {number: plain(values) for number, values in files.items()},
    )


def host_pids(pids: Collection[int]) -> dict[int, int]:
    """Return the pids of processes here by those in their own namespace."""
    return {nspid: pid for pid in pids if (nspid := processes.nspid(pid)) is not None}
