"""The command `jupyter gpuckpt remote prune`, which removes snapshots that no rule keeps from a remote (`remote/unneeded.py`)."""

from __future__ import annotations

import sys
import time
from argparse import Namespace

from ...errors import OperationCancelled
from ...wire.plurals import counted
from ...wire.remote_records import RemotePruneRequest, RemotePruning, RemoteVerb, RemoteVerdict
from ...wire.retention_policy import RetentionPolicy
from .. import printing
from ..parser import Parser
from ..prune import add_rules, confirm, policy_of
from .key_command import ask


def add_arguments(to: Parser) -> None:
    """Add the arguments of `remote prune`."""
    to.description = (
        "Remove the snapshots that no rule keeps from a remote, whichever machine uploaded them. The rules are those of `prune`, for each"
        " session. The newest snapshots of a session, snapshots that are pinned or have a title or note, those that a machine relies on,"
        " and, without --manual-too, those that users took are always kept."
    )
    to.add_argument("name", metavar="NAME", help="the remote's name")
    add_rules(to, "session")
    to.add_argument(
        "--lost-machine",
        metavar="HOST",
        default="",
        help="declare machine HOST (its name or id) gone: snapshots that only it needed may be removed",
    )


def run(args: Namespace) -> int:
    """Remove snapshots, after questions on a terminal; print which were removed and which are kept."""
    policy = RetentionPolicy()
    if not args.lost_machine or args.keep_last or args.keep_within or args.max_size:
        policy = policy_of(args)
    plan = _asked(args, RemotePruneRequest(policy, dry_run=True, lost_machine=args.lost_machine))
    if not args.json:
        _say_plan(args, plan)
    doomed = sum(one.removed for one in plan.verdicts)
    found = plan
    if not args.dry_run:
        if plan.lost and not args.yes and sys.stdin.isatty():
            short = ", ".join(sorted(printing.short_ids(plan.lost).values()))
            if not printing.ask(
                f"Machine {args.lost_machine} relies on {counted(len(plan.lost), 'snapshot')} in remote {args.name} ({short}),"
                " and may lose them. Is the machine gone for good?"
            ):
                raise OperationCancelled("Nothing was deleted.")
        if doomed:
            confirm(args, doomed)
        found = _asked(args, RemotePruneRequest(policy, lost_machine=args.lost_machine))
    if args.json:
        printing.say_json({"remote": args.name, "dry_run": args.dry_run, "prune": found})
        return 0
    if found.lost:
        may = "could" if args.dry_run else "may"
        printing.say(
            f"{counted(len(found.lost), 'snapshot')} that machine {args.lost_machine} relied on there {may} be removed."
        )
    if found.verdicts:
        _say_done(args, found)
    return 0


def _asked(args: Namespace, request: RemotePruneRequest) -> RemotePruning:
    return ask(RemoteVerb.PRUNE, args.name, prune=request).pruning or RemotePruning()


def _say_done(args: Namespace, found: RemotePruning) -> None:
    gone = sum(one.removed for one in found.verdicts)
    stay, freed = f"{len(found.verdicts) - gone} stay.", printing.size(found.freed_bytes)
    if args.dry_run:
        printing.say(f"\n{gone} would be deleted, {stay} About {freed} would become free later.")
    else:
        printing.say(f"\n{gone} deleted, {stay} Later collections free about {freed}.")


def _say_plan(args: Namespace, plan: RemotePruning) -> None:
    short = printing.short_ids(one.snapshot_id for one in plan.verdicts)
    now = time.time()

    def row(one: RemoteVerdict) -> list[str]:
        return [
            short[one.snapshot_id],
            one.path or "-",
            one.host_name or "-",
            printing.age(now - one.created),
            printing.size(one.stored_bytes),
            "delete" if one.removed else "keep",
            one.reason,
        ]

    heads = ["SNAPSHOT", "NOTEBOOK", "FROM", "CREATED", "STORED", "", "WHY"]
    if plan.verdicts:
        printing.say(printing.table(heads, list(map(row, plan.verdicts)), right={"STORED"}))
    elif not args.lost_machine:
        printing.say("No snapshots.")
