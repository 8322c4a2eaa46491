"""The command `jupyter gpuckpt remote keep`, which sets a remote's rule for the snapshots of all machines."""

from __future__ import annotations

import sys
import time
from argparse import ArgumentParser, Namespace

from ...errors import ConfigurationError, OperationCancelled
from ...wire.plurals import counted
from ...wire.remote_records import FarVerdict, Keeping, KeepRequest, RemoteVerb
from ...wire.retention_policy import RetentionPolicy
from .. import printing
from ..prune import count, seconds, size_bytes
from .key_command import ask

#: The units in which times are shown, each with the shortest time for which it is used and its length in seconds.
_UNITS = (("days", 172800.0, 86400.0), ("hours", 7200.0, 3600.0), ("minutes", 120.0, 60.0))


def add_arguments(to: ArgumentParser) -> None:
    """Add the arguments of `remote keep`."""
    to.description = (
        "Set which snapshots a remote keeps, for all machines that use it; without options, show the rule and what it removes. In each"
        " session a snapshot is kept if it is among the last N, or was taken within TIME before the newest one. Then the oldest are removed"
        " until the remote takes no more than SIZE. No rule removes the newest snapshot of a session, snapshots that are pinned or have a"
        " title or note, those that a machine relies on, and, without --manual-too, those that users took, except suspends beyond"
        " --keep-suspends. One of the machines removes the others when it next collects what nothing needs. Without a rule, and by"
        " default, all are kept."
    )
    to.add_argument("name", metavar="NAME", help="the remote's name")
    to.add_argument(
        "--keep-last", metavar="N", type=count, default=0, help="keep the last N of every session"
    )
    to.add_argument(
        "--keep-within",
        metavar="TIME",
        type=seconds,
        default=0.0,
        help="keep those taken within TIME before the session's newest: 90m, 12h, 7d, 2w",
    )
    to.add_argument(
        "--max-size",
        metavar="SIZE",
        type=size_bytes,
        default=0,
        help="then remove the oldest until all take no more than SIZE: 500M, 20G, 1.5T",
    )
    to.add_argument(
        "--keep-suspends",
        metavar="N",
        type=count,
        default=0,
        help="of the suspends that users requested, keep the last N of every session. Default: all",
    )
    to.add_argument(
        "--manual-too", action="store_true", help="also remove snapshots that users took"
    )
    to.add_argument(
        "--lost-machine",
        metavar="HOST",
        default="",
        help="the name or id of a machine that never comes back: what only it needed there may be removed",
    )
    to.add_argument("--no-rule", action="store_true", help="remove the rule: all are kept")
    to.add_argument(
        "-n", "--dry-run", action="store_true", help="only show what would be removed; set no rule"
    )
    to.add_argument("-y", "--yes", action="store_true", help="do not ask")


def run(args: Namespace) -> int:
    """Show what a rule removes, and set it after a question on a terminal; without a rule, show the one that is set."""
    policy = _policy(args)
    request = KeepRequest(policy, args.dry_run, args.lost_machine)
    changes = policy is not None or args.lost_machine
    if changes and not (args.dry_run or args.yes) and sys.stdin.isatty():
        planned = _asked(args, KeepRequest(policy, dry_run=True, lost_machine=args.lost_machine))
        if policy is not None and not args.json:
            _say_table(planned)
        if question := _question(args, planned, policy):
            _confirm(question)
    found = _asked(args, request)
    if args.lost_machine and not args.json:
        may = "could" if args.dry_run else "may"
        printing.say(
            f"{counted(found.released, 'snapshot')} that machine {args.lost_machine} relied on there {may} be removed by a rule."
        )
    _say(args, found)
    return 0


def _question(args: Namespace, planned: Keeping, policy: RetentionPolicy | None) -> str:
    """Return the question to be answered before anything is changed; empty if nothing can be removed."""
    parts = []
    if args.lost_machine:
        short = printing.short_ids(planned.lost).values()
        parts.append(
            f"Machine {args.lost_machine} relies on {counted(planned.released, 'snapshot')} in remote {args.name}"
            f" ({', '.join(sorted(short))}), which can then be lost for it."
        )
    if policy is not None and not policy.removes_nothing:
        going = sum(one.removed for one in planned.verdicts)
        parts.append(
            f"The rule removes {counted(going, 'snapshot')} from remote {args.name} for ever, whichever machine uploaded them,"
            " and later those that it no longer keeps then."
        )
    asked = ["Does it never come back?"] * bool(args.lost_machine)
    if len(parts) > len(asked):
        asked = ["Does it never come back, and is the rule to be set?"] if asked else ["Set it?"]
    return " ".join([*parts, *asked])


def _confirm(question: str) -> None:
    """Ask a question on a terminal. Raises OperationCancelled."""
    if not printing.ask(question):
        raise OperationCancelled("Nothing was changed.")


def _policy(args: Namespace) -> RetentionPolicy | None:
    """Return the rule that the options state; None if there are none. Raises ConfigurationError for options that exclude each other."""
    stated = RetentionPolicy(
        args.keep_last, args.keep_within, args.max_size, args.manual_too, args.keep_suspends
    )
    if args.no_rule:
        if stated != RetentionPolicy():
            raise ConfigurationError("--no-rule cannot be combined with a rule.")
        return stated
    if not stated.removes_nothing:
        return stated
    if args.manual_too:
        raise ConfigurationError(
            "No rule is given for the snapshots to keep.",
            hint="Give --keep-last, --keep-within, --keep-suspends or --max-size; --dry-run shows what they would do.",
        )
    return None


def _asked(args: Namespace, request: KeepRequest) -> Keeping:
    found = ask(RemoteVerb.KEEP, args.name, keep=request).keeping
    if found is None:
        raise ConfigurationError(f"The rule of remote {args.name} is not known.", hint="Try again.")
    return found


def _say(args: Namespace, found: Keeping) -> None:
    if args.json:
        printing.say_json({"remote": args.name, "dry_run": args.dry_run, "keeping": found})
        return
    if found.policy.removes_nothing:
        printing.say(
            f"Remote {args.name} {'would keep' if args.dry_run else 'keeps'} all snapshots."
        )
        return
    if args.dry_run:
        _say_table(found)
    else:
        when = f", set {printing.age(time.time() - found.changed_at)}" if found.changed_at else ""
        where = f" on {found.changed_on}" if found.changed_on else ""
        printing.say(f"Remote {args.name} keeps {as_text(found.policy)}{when}{where}.")
    going = sum(one.removed for one in found.verdicts)
    stay = len(found.verdicts) - going
    verb = "would be removed" if args.dry_run else "will be removed by the next collection"
    freed = f" About {printing.size(found.freed_bytes)} become free." if going else ""
    printing.say(
        f"{counted(going, 'snapshot')} {verb}, {stay} {'stays' if stay == 1 else 'stay'}.{freed}"
    )


def as_text(policy: RetentionPolicy) -> str:
    """Format a rule for people."""
    rules = []
    if policy.keep_last:
        rules.append(f"the last {policy.keep_last} of each session")
    if policy.keep_within_seconds:
        rules.append(
            f"those of the {_span(policy.keep_within_seconds)} before the newest of each session"
        )
    text = " and ".join(rules) or "all"
    if policy.max_bytes:
        text += f", up to {printing.size(policy.max_bytes)} in all"
    if policy.manual_too:
        return text
    if policy.keep_suspends:
        suspends = counted(policy.keep_suspends, "suspend")
        return f"{text}; and those that users took, but of requested suspends only the last {suspends} of each session"
    return text if text == "all" else f"{text}; and those that users took"


def _span(seconds: float) -> str:
    """Format a time of a rule: `30 days`, `36 hours`, `90 minutes`, `0.5 seconds`."""
    for unit, least, length in _UNITS:
        if seconds >= least:
            return f"{seconds / length:.6g} {unit}"
    return f"{seconds:.3g} seconds"


def _say_table(found: Keeping) -> None:
    if not found.verdicts:
        return
    short = printing.short_ids(one.snapshot_id for one in found.verdicts)
    now = time.time()

    def row(one: FarVerdict) -> list[str]:
        return [
            short[one.snapshot_id],
            one.path or "-",
            one.host_name or "-",
            printing.age(now - one.created),
            printing.size(one.stored_bytes),
            "remove" if one.removed else "keep",
            one.reason,
        ]

    heads = ["SNAPSHOT", "NOTEBOOK", "FROM", "CREATED", "STORED", "", "WHY"]
    printing.say(printing.table(heads, list(map(row, found.verdicts)), right={"STORED"}))
