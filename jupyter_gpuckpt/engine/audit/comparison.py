"""Comparison of the facts before a freeze and after a restore. What differs by nature has a rule that bounds it."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import NamedTuple

from . import asked_facts
from .fact_records import Difference, Facts, Kind, ProcessFacts, Values

#: How much later or earlier a timer for an absolute time may fire, in nanoseconds.
_TIMER_TOLERANCE_NS = 100_000_000
#: How much earlier a timer may fire that runs while the kernel's clock runs, in seconds: as long as a freeze and a restore may take.
_WAITING_SECONDS = 120
#: SECBIT_NOROOT and its lock (man capabilities).
_NOROOT = 3
_LARGEFILE = 0o100000
_UNIX = f"{socket.AF_UNIX:d} "
#: Digits of the name of a zero byte and five letters.
_CHOSEN_LENGTH = 12
#: The fact of a listener (SO_ACCEPTCONN).
_ACCEPTS = "option 1 30"
_LISTEN, _CLOSED = "10", "7"
#: TCP_FIN_WAIT1 and TCP_FIN_WAIT2.
_ENDED = {"4", "5"}
#: POLLHUP and POLLRDHUP: nobody is at the other end.
_GONE = str(0x10 | 0x2000)
#: SIGCONT and the stop signals are ours, SIGCHLD tells parents of them.
_OF_STANDSTILL = sum(
    1 << (number - 1) for number in (signal.SIGCONT, signal.SIGSTOP, signal.SIGCHLD)
)


class Context(NamedTuple):
    """The context of a rule: all facts of the same process, thread or descriptor, and the names that have changed."""

    before: Values
    after: Values
    process: ProcessFacts
    changes: Changes

    @property
    def handled(self) -> int:
        """The signals for which the process has a handler: bit n-1 for signal n."""
        return _bits(self.process.process, "SigCgt")

    @property
    def blocked(self) -> int:
        """The signals that all threads of the process block."""
        every = -1
        for thread in self.process.threads.values():
            every &= _bits(thread, "SigBlk")
        return every


class Changes:
    """What a resume may change: files that it has `made`, because they were gone, and ports, addresses and names.

    Each of these is replaced by one other, and no two by the same. `own_sockets`: the names of the unix sockets on which the kernel
    listens for its clients, who connect again.
    """

    def __init__(self, made: Collection[str] = (), own_sockets: Collection[str] = ()) -> None:
        self.made, self.own_sockets = made, own_sockets
        self._new: dict[str, str] = {}
        self._old: dict[str, str] = {}

    def accepts(self, old: str, new: str) -> bool:
        """Return whether `old` may have become `new`, as far as is known; remember that it has."""
        return self._new.setdefault(old, new) == new and self._old.setdefault(new, old) == old


Rule = Callable[[str, str, Context], bool]


def differences(before: Facts, after: Facts, changes: Changes) -> list[Difference]:
    """Return the facts that are not as they were."""
    found = {process.pid: process for process in after.processes}
    result = list[Difference]()
    for process in before.processes:
        if process.pid in found:
            result += _of_process(process, found[process.pid], changes)
        else:
            result.append(Difference(process.pid, "process", process.pid, "process", "", None))
    return result


def _of_process(
    before: ProcessFacts, after: ProcessFacts, changes: Changes
) -> Iterator[Difference]:
    kinds: tuple[Kind, ...] = ("process", "thread", "descriptor")
    for kind in kinds:
        then, now = before.of(kind), after.of(kind)
        for number in sorted({*then, *now}):
            old, new = then.get(number), now.get(number)
            if old is None or new is None:
                here, gone = ("", None) if new is None else (None, "")
                yield Difference(before.pid, kind, number, kind, here, gone)
            elif not _is_cut(old, new):
                for fact in sorted(_differing(old, new, Context(old, new, before, changes))):
                    yield Difference(before.pid, kind, number, fact, old.get(fact), new.get(fact))


def _differing(old: Values, new: Values, context: Context) -> Iterator[str]:
    for fact in {*old, *new}:
        was, now = old.get(fact, ""), new.get(fact, "")
        if was != now:
            try:
                is_right = _rule(fact)(was, now, context)
            except (ValueError, LookupError):  # of a snapshot that this version does not understand
                is_right = False
            if not is_right:
                yield fact


def _rule(fact: str) -> Rule:
    return RULES.get(fact) or RULES.get(fact.partition(" ")[0]) or _is_wrong


def _is_wrong(before: str, after: str, context: Context) -> bool:
    return False


def _is_cut(before: Mapping[str, str], after: Mapping[str, str]) -> bool:
    """Return whether a socket was a TCP connection and is closed: those with other programs are cut, which other warnings tell."""
    return before.get("state", _CLOSED) not in (_LISTEN, _CLOSED) and after.get("state") == _CLOSED


def _were_delivered(before: str, after: str, context: Context) -> bool:
    """Accept that pending signals were delivered to a handler or have come from a timer, and those of the standstill."""
    then, now = int(before or "0", 16), int(after or "0", 16)
    gone, come = then & ~now, now & ~then
    return not (
        gone & ~(context.handled & ~context.blocked | _OF_STANDSTILL)
        or come & ~(context.handled | _OF_STANDSTILL)
    )


def _handler_runs(before: str, after: str, context: Context) -> bool:
    """Accept that handled signals are blocked in addition: Linux has begun a handler, which has not run yet."""
    then, now = int(before or "0", 16), int(after or "0", 16)
    return not then & ~now and not now & ~then & ~context.handled


def _opened_otherwise(before: str, after: str, context: Context) -> bool:
    """Accept O_LARGEFILE, which has no meaning on 64-bit machines, and that a file without a name has one for CRIU (O_TMPFILE)."""
    then, now = int(before or "0", 8), int(after or "0", 8)
    if then & os.O_TMPFILE == os.O_TMPFILE:
        then &= ~os.O_TMPFILE
    return then | _LARGEFILE == now


def _is_of_connection(before: str, after: str, context: Context) -> bool:
    """Accept another value in a TCP connection: both ends negotiate it, or `tcp/remake.py` restores it (the bytes in transit)."""
    return context.before.get("state", _CLOSED) not in (_LISTEN, _CLOSED)


def _is_renamed(before: str, after: str, context: Context) -> bool:
    """Accept another port or address if the change is one to one: no two former ones become the same, and none becomes two.

    A unix socket keeps its name, except one that Linux chose. Both ends of a connection lose the listener's name: CRIU makes such
    a pair without a listener.
    """
    if context.before["socket"].startswith(_UNIX) and not _is_chosen_by_linux(before, after):
        return not after and _ACCEPTS not in context.before
    old, new = before.rpartition(" "), after.rpartition(" ")
    accepts = context.changes.accepts
    # A connection within the tree is made before its listener, whose port it need not have (`tcp/remake.py`).
    kind = "listener " if _ACCEPTS in context.before else ""
    is_one = accepts(f"{kind}{before}", f"{kind}{after}")
    return bool(new[2]) and is_one and (old[0] == new[0] or accepts(old[0], new[0]))


def _is_chosen_by_linux(*names: str) -> bool:
    """Return whether these are abstract names of five digits (man 7 unix, autobind), as `socket_facts` writes them."""
    return all(name.startswith("00") and len(name) == _CHOSEN_LENGTH for name in names)


def _is_of_client(before: str, after: str, context: Context) -> bool:
    """Accept that a client of the kernel's own unix sockets is gone: it connects again."""
    return _is_own(context) and after == _GONE


def _is_read_otherwise(before: str, after: str, context: Context) -> bool:
    """Accept other unread bytes in a TCP connection, and in one of a client of the kernel's own unix sockets."""
    return _is_own(context) or _is_of_connection(before, after, context)


def _is_own(context: Context) -> bool:
    """Return whether a socket belongs to a client of the kernel's own unix sockets."""
    is_unix = context.before.get("socket", "").startswith(_UNIX)
    return is_unix and context.before.get("local") in context.changes.own_sockets


def _has_ended_as_before(before: str, after: str, context: Context) -> bool:
    """Accept that the other side has confirmed the end of a connection, or has not yet."""
    return {before, after} == _ENDED


def _fires_then(before: str, after: str, context: Context) -> bool:
    """Accept a small deviation of the time at which an absolute timer fires, that it has fired, and its next time if it is periodic."""
    if not after:
        return int(context.after.get("ticks", "0")) > 0
    late = int(after) - int(before)
    if (interval := round(1e9 * _seconds(context.before.get("it_interval", "")))) and late > 0:
        late = min(late % interval, interval - late % interval)
    return abs(late) <= _TIMER_TOLERANCE_NS


def _has_run_since(before: str, after: str, context: Context) -> bool:
    """Accept that a running timer has less time left, by no more than a freeze and a restore take."""
    then, now = _seconds(before), _seconds(after)
    if "(0, 0)" not in context.before.get("it_interval", "(0, 0)"):
        return now <= max(then, _seconds(context.before["it_interval"]))
    return then - _WAITING_SECONDS <= now <= then and (now > 0 or "ticks" in context.after)


def _at_least(before: str, after: str, context: Context) -> bool:
    """Accept more: of the ticks of a timer that runs on, of keys in the session's keyring that others have put there."""
    return int(before or 0) <= int(after or 0)


def _can_gain_nothing(before: str, after: str, context: Context) -> bool:
    """Accept, without any capability, that none comes with the user id 0 (SECBIT_NOROOT), as a restore in a user namespace leaves it."""
    return int(after or 0) in (0, _NOROOT) and not before and not _bits(context.before, "CapPrm")


def _are_other_ids(before: str, after: str, context: Context) -> bool:
    """Accept, without any capability, that a user and groups of another machine have the ids of those of this one."""
    if _bits(context.before, "CapPrm"):
        return False
    old, new = before.split(), after.split()
    return len(old) == len(new) and all(
        context.changes.accepts(f"id {then}", f"id {now}")
        for then, now in zip(old, new, strict=True)
        if then != now
    )


def _are_of_this_user(before: str, after: str, context: Context) -> bool:
    """Accept, without any capability, the groups of the user who resumes: Linux lets nobody else choose them."""
    return not _bits(context.before, "CapPrm")


def _is_new_in_linux(before: str, after: str, context: Context) -> bool:
    """Accept that another version of Linux shows a fact or does not."""
    return not before or not after


def _both_have_names(before: str, after: str, context: Context) -> bool:
    """Accept another path of an open file: CRIU opens files by name, and copies that travel have names of their own."""
    return before.startswith("/") and after.startswith("/")


def _was_made_empty(before: str, after: str, context: Context) -> bool:
    """Accept that a file that was gone is read or written from its beginning."""
    return after in ("", "0") and context.before.get("link") in context.changes.made


def _watches_the_same(before: str, after: str, context: Context) -> bool:
    """Accept another number of a watched file if the former one was closed or given to another file: CRIU uses a duplicate's."""
    then, now = sorted(map(_watch, before.split("; "))), sorted(map(_watch, after.split("; ")))
    files = context.process.descriptors
    return [what for what, _ in then] == [what for what, _ in now] and all(
        old == new or _link(files, old) != _link(files, new)
        for (_, old), (_, new) in zip(then, now, strict=True)
    )


def _watch(entry: str) -> tuple[str, int]:
    """Return what an entry of epoll says beside the number of the descriptor, and that number."""
    _, number, what = entry.split(maxsplit=2)
    return what, int(number)


def _link(files: Mapping[int, Values], number: int) -> str:
    return files.get(number, {}).get("link", "")


def _bits(values: Values, fact: str) -> int:
    return int(values.get(fact, "0"), 16)


def _seconds(pair: str) -> float:
    """Return the seconds of `(1, 500000000)`."""
    if not pair:
        return 0.0
    whole, _, nanoseconds = pair.strip("()").partition(",")
    return int(whole) + int(nanoseconds) / 1e9


#: Fact, or its first word -> whether its value afterwards is right, though it is another one.
RULES: dict[str, Rule] = {
    "ShdPnd": _were_delivered,
    "SigPnd": _were_delivered,
    "SigBlk": _handler_runs,
    "flags": _opened_otherwise,
    # MAXSEG and IPV6_V6ONLY are the program's choice for a listener.
    "option 6 2": _is_of_connection,
    "option 41 26": _is_of_connection,
    "unread": _is_read_otherwise,
    "ends": _is_of_client,
    "local": _is_renamed,
    "remote": _is_renamed,
    "state": _has_ended_as_before,
    "fires": _fires_then,
    "it_value": _has_run_since,
    "ticks": _at_least,
    "session keyring": _at_least,
    "Uid": _are_other_ids,
    "Gid": _are_other_ids,
    "Groups": _are_of_this_user,
    **dict.fromkeys(asked_facts.ALWAYS_THERE, _is_new_in_linux),
    "THP_enabled": _is_new_in_linux,
    "untag_mask": _is_new_in_linux,
    "secure bits": _can_gain_nothing,
    "entries": _watches_the_same,
    "link": _both_have_names,
    "pos": _was_made_empty,
}
