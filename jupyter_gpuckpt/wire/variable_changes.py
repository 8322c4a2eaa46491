"""The differences between two moments of a kernel."""

from __future__ import annotations

import msgspec

from .folder_records import FolderComparison
from .manifest_records import Variable, Variables


class Change(msgspec.Struct, frozen=True):
    """A variable whose value has changed."""

    name: str
    then: Variable
    now: Variable


class Comparison(msgspec.Struct, frozen=True):
    """The differences between two moments. `unknown`: variables that may have changed. `same`: the number of unchanged ones."""

    added: list[Variable] = []
    removed: list[Variable] = []
    changed: list[Change] = []
    unknown: list[str] = []
    same: int = 0
    #: The files of the working folder that differ; None: they were not compared.
    files: FolderComparison | None = None


def compare(then: Variables, now: Variables) -> Comparison:
    """Compare the variables of two moments."""
    before = {variable.name: variable for variable in then.listed}
    after = {variable.name: variable for variable in now.listed}
    changed, unknown, same = list[Change](), list[str](), 0
    for name in sorted(before.keys() & after.keys()):
        prints = then.fingerprints.get(name, ""), now.fingerprints.get(name, "")
        if _looks_different(before[name], after[name]) or (all(prints) and len(set(prints)) > 1):
            changed.append(Change(name, before[name], after[name]))
        elif all(prints):
            same += 1
        else:
            unknown.append(name)
    added = [variable for variable in now.listed if variable.name not in before]
    removed = [variable for variable in then.listed if variable.name not in after]
    if not then.complete:  # it may have been among those that are not listed
        unknown += [variable.name for variable in added]
        added = []
    if not now.complete:
        unknown += [variable.name for variable in removed]
        removed = []
    return Comparison(added, removed, changed, unknown, same)


def _looks_different(first: Variable, second: Variable) -> bool:
    # A summary may be missing because there was no time for it.
    comparable = bool(first.summary and second.summary)
    return first.kind != second.kind or (comparable and first.summary != second.summary)
