"""Sentences for users about what is not as it was."""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from .fact_records import Difference, Facts, Values
from .proc_facts import OWN_DESCRIPTORS

#: The most sentences of one resume.
_SHOWN = 6
#: Names of facts as users know them, where the fact's own name does not do.
_NAMES = {
    "ioprio": "the I/O priority",
    "own working directory": "a thread's own working directory",
    "own umask": "a thread's own umask",
    "scheduling": "the scheduling policy or priority",
    "autogroup": "the nice value of the session's autogroup",
    "coredump_filter": "the filter of core dumps",
    "oom_score_adj": "the OOM score adjustment",
    "VmLck": "the locked memory",
    "locked when used": "the memory that is locked when it is used",
    "Umask": "the umask",
    "Threads": "the number of threads",
    "timers": "the POSIX timers",
    "SigBlk": "the blocked signals",
    "SigIgn": "the ignored signals",
    "SigCgt": "the handled signals",
    "SigPnd": "the pending signals",
    "ShdPnd": "the pending signals",
    "eventfd-count": "the count",
    "eventfd-semaphore": "the way of counting (EFD_SEMAPHORE)",
    "entries": "the watched files or descriptors",
    "flags": "the flags",
    "link": "the file",
    "fires at": "the time of the timer",
    "it_value": "the time of the timer",
    "pos": "the position",
    "ends": "the end or error",
    "store bypass": "the protection against speculative store bypass",
    "indirect branches": "the protection against speculation of indirect branches",
}
#: A longer value says nothing to users.
_LONG = 40
_PREFIXES = {1: "SO_", 0: "IP_", 6: "TCP_", 41: "IPV6_"}
_KEYRINGS = ("thread keyring", "process keyring", "session keyring")


class _Change(NamedTuple):
    """The parts of a sentence: the subject, whose it is, and what has become of it."""

    subject: str
    whose: str
    became: str


def sentences(found: Iterable[Difference], before: Facts) -> list[str]:
    """Return a sentence for each kind of difference, in the order of the differences; the last one counts those left out."""
    programs = {process.pid: process for process in before.processes}
    counted = Counter[_Change]()
    for one in found:
        process = programs[one.pid]
        facts = process.of(one.kind).get(one.number, {})
        whose = f"{process.name} (process {one.pid})"
        counted[_Change(_subject(one, facts), whose, _became(one))] += 1
    shown = [
        _printable(f"After the resume, {one.subject} of {one.whose} {one.became}{_times(count)}.")
        for one, count in list(counted.items())[:_SHOWN]
    ]
    if (left := len(counted) - _SHOWN) > 0:
        shown.append(
            f"{left} more properties of its processes changed; the log of the daemon has them."
        )
    return shown


def _printable(text: str) -> str:
    """Return a text without control characters, which a name in a stranger's snapshot may contain."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def _times(count: int) -> str:
    return f", {count} times" if count > 1 else ""


def _subject(one: Difference, facts: Values) -> str:
    if one.fact in ("process", "thread", "descriptor"):
        return f"{one.fact} {one.number}"
    if one.fact == OWN_DESCRIPTORS:
        return "descriptors that one thread had for itself"
    if one.fact in _KEYRINGS:
        return f"keys of the {one.fact}"
    if one.kind != "descriptor":
        return _name(one.fact)
    file = facts.get("link", "").removeprefix("anon_inode:").strip("[]:") or "file"
    what = _name(one.fact)
    if one.fact == "unread":
        what = "unread events" if file == "inotify" else "unread data"
    return f"{what} of descriptor {one.number} ({file})"


def _became(one: Difference) -> str:
    if one.fact in ("process", "thread", "descriptor"):
        return "is missing" if one.after is None else "is new"
    if one.fact in (*_KEYRINGS, OWN_DESCRIPTORS, "unread"):
        return "are missing" if one.before else "have come"
    before, after = (value or "not set" for value in (one.before, one.after))
    if max(len(before), len(after)) > _LONG:
        return "is not as it was"
    return f"is {after} instead of {before}"


def _name(fact: str) -> str:
    kind, _, rest = fact.partition(" ")
    if kind == "option":
        level, number = map(int, rest.split())
        return f"the option {_option(level, number)}"
    if kind == "lock":
        return f"the lock {rest}"
    if kind == "membership":
        return f"the membership in the multicast group {rest}"
    return _NAMES.get(fact, f"the {fact}")


def _option(level: int, number: int) -> str:
    prefix = _PREFIXES.get(level)
    for name, value in vars(socket).items():
        if prefix and name.startswith(prefix) and value == number:
            return name
    return f"{number} of level {level}"
