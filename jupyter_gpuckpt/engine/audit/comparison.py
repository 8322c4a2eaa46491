"""Comparison of the facts before a freeze and after a restore. What differs by nature has a rule that bounds it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from .records import Difference, Facts, Kind, ProcessFacts


class Context(NamedTuple):
    """What rules need to know: all facts of the same process, thread or descriptor, before and after."""

    before: Mapping[str, str]
    after: Mapping[str, str]
    seconds: float


Rule = Callable[[str, str, Context], bool]

#: Fact -> whether its value afterwards is right, though it is another one.
RULES: dict[str, Rule] = {}


def differences(before: Facts, after: Facts) -> list[Difference]:
    """Return the facts that are not as they were."""
    found = {process.pid: process for process in after.processes}
    result = []
    for process in before.processes:
        if process.pid in found:
            result += _of_process(process, found[process.pid], after)
        else:
            result.append(Difference(process.pid, "process", process.pid, "process", "", None))
    return result


def _of_process(
    before: ProcessFacts, after: ProcessFacts, all_after: Facts
) -> Iterator[Difference]:
    kinds: tuple[Kind, ...] = ("process", "thread", "descriptor")
    for kind in kinds:
        then, now = before.of(kind), after.of(kind)
        for number in sorted({*then, *now}):
            if number not in then or number not in now:
                here = "" if number in then else None
                gone = "" if number in now else None
                yield Difference(before.pid, kind, number, kind, here, gone)
                continue
            context = Context(then[number], now[number], 0.0)
            for fact in sorted({*then[number], *now[number]}):
                old, new = then[number].get(fact), now[number].get(fact)
                if old != new and not _is_right(fact, old, new, context):
                    yield Difference(before.pid, kind, number, fact, old, new)


def _is_right(fact: str, old: str | None, new: str | None, context: Context) -> bool:
    rule = RULES.get(fact) or RULES.get(fact.split()[0])
    return rule is not None and rule(old or "", new or "", context)
