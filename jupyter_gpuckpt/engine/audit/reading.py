"""Reading all facts of a tree whose tasks stand still. They are understood when these run on."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from ...host import processes
from ..injection.call_tables import CallTables
from ..injection.threads_held import ThreadsHeld
from ..injection.tracee import Tracee
from ..tree.tree import Tree
from . import asked_facts, descriptor_facts, proc_facts
from .fact_records import Facts, ProcessFacts, TerminalQueue, plain
from .terminal_queues import TerminalQueues

logger = logging.getLogger(__name__)


class Answer(NamedTuple):
    """What is known of a thread. `table`: its calls in its memory, after it was asked; empty if it could not be."""

    look: proc_facts.Look
    table: bytes
    is_main: bool


#: By process and thread.
Answers = dict[int, dict[int, Answer]]


def ask(held: ThreadsHeld) -> Answers:
    """Look at the held threads of a process, and ask them. What this finds is understood later (`facts`)."""
    found = dict[int, Answer]()
    asked = list[tuple[Tracee, tuple[int, int]]]()
    for tracee in held.tracees():
        with suppress(OSError):  # it has ended
            look = proc_facts.look(held.pid, tracee.tid)
            found[tracee.tid] = Answer(look, b"", is_main=False)
            with suppress(ValueError):
                asked.append((tracee, proc_facts.ids(look)))
    with suppress(OSError), CallTables(held.tracee()) as tables:
        main = True
        while asked:
            # The first thread that answers is asked for its process, too; then all others at the same time.
            now, asked = (asked[:1], asked[1:]) if main else (asked, [])
            results = tables.run_all(now, asked_facts.table(main=main))
            for (tracee, _), result in zip(now, results, strict=True):
                if isinstance(result, OSError):
                    logger.info("thread %d was not asked for the audit: %s", tracee.tid, result)
                    continue
                found[tracee.tid] = found[tracee.tid]._replace(table=result, is_main=main)
                main = False
    return {held.pid: found}


def read(
    pids: Collection[int],
    descriptors: Mapping[int, Sequence[int]],
    only: Collection[int] | None = None,
) -> dict[int, ProcessFacts]:
    """Read what processes that stand still, or some of them, show beside their threads. `descriptors`: the numbers of each one's.

    What cannot be read is missing.
    """
    found, seen = dict[int, ProcessFacts](), set[str]()
    # In the same order before and after: of an open file that several have, the first one has the facts.
    pids = sorted(pids, key=lambda pid: processes.nspid(pid) or 0)
    for pid in pids:
        if only is not None and pid not in only:
            seen |= descriptor_facts.sockets(pid, descriptors.get(pid, ()))
            continue
        try:
            found[pid] = _process(pid, descriptors.get(pid, ()), seen)
        except ProcessLookupError:
            continue
        except Exception:  # whatever Linux shows, no save or resume fails because of it
            logger.exception("process %d is missing in the audit", pid)
    return found


def _process(pid: int, descriptors: Sequence[int], seen: set[str]) -> ProcessFacts:
    status = proc_facts.status(pid)
    of_process = proc_facts.of_process(pid, status)
    files = descriptor_facts.of_process(pid, descriptors, seen)
    return ProcessFacts(
        int(status["NSpid"].split()[-1]),
        plain({"name": status["Name"]})["name"],
        plain(of_process),
        descriptors={number: plain(values) for number, values in files.items()},
    )


def facts(
    found: Mapping[int, ProcessFacts], answers: Answers, terminals: Sequence[TerminalQueue] = ()
) -> Facts:
    """Return the facts of processes that `read` found, with those of their threads; the processes may run meanwhile."""
    for pid, process in found.items():
        for answer in answers.get(pid, {}).values():
            values = proc_facts.of_thread(answer.look)
            if answer.table:
                results = asked_facts.table(main=answer.is_main).results(answer.table)
                values |= asked_facts.of_thread(results)
                process.process |= asked_facts.of_process(results)
            process.threads[proc_facts.ids(answer.look)[1]] = plain(values)
    return Facts(processes=list(found.values()), terminals=list(terminals))


class Audit:
    """The guest of a standstill that gathers the facts of its moment."""

    def __init__(self, tree: Tree) -> None:
        self._answers: Answers = {}
        self._descriptors: Mapping[int, Sequence[int]] = {}
        self._terminals = TerminalQueues(tree)

    def ask(self, held: ThreadsHeld) -> None:
        """Ask the threads of a process."""
        self._answers |= ask(held)

    def begin(self, descriptors: Mapping[int, Sequence[int]]) -> None:
        """Take what waits in terminals."""
        self._descriptors = descriptors
        self._terminals.take(descriptors)

    def end(self) -> None:
        """Put back what waits in terminals."""
        self._terminals.put_back()

    def read(self) -> Callable[[], Facts]:
        """Read the processes, which must stand still; return a function that understands all facts when they run on."""
        found = read(list(self._descriptors), self._descriptors)
        queues = list(self._terminals.queues)
        return lambda: facts(found, self._answers, queues)
