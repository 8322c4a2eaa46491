"""The command `jupyter gpuckpt remote erase`, which removes a session of a remote, or everything in it, for good."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace

from ...errors import AccessDenied, OperationCancelled
from ...wire.plurals import counted
from ...wire.remote_records import ErasePlan, Erasure, RemoteVerb
from ...wire.statuses import exit_code
from .. import printing
from . import only_copies
from .key_command import ask

_NUMBERS = frozenset({"SNAPSHOTS", "STORED"})


def add_arguments(to: ArgumentParser) -> None:
    """Add the arguments of `remote erase`."""
    to.add_argument("name", metavar="NAME", help="the remote's name")
    to.add_argument(
        "session",
        metavar="SESSION",
        nargs="?",
        default="",
        help="the id of one of its snapshots, its notebook's path, or its own id. Without it everything is erased, the remote's key"
        " first, and the remote is forgotten",
    )
    to.add_argument("-y", "--yes", action="store_true", help="do not ask")
    to.add_argument(
        "--force",
        action="store_true",
        help="erase it even if it has the only copies of snapshots that are listed here",
    )


def run(args: Namespace) -> int:
    """Show what will be erased, ask, and erase it; return the status of AccessDenied if something could not be deleted."""
    answer = ask(RemoteVerb.PLAN_ERASE, args.name, session=args.session)
    plan = answer.plan or ErasePlan([], 0, 0)
    session_id = plan.sessions[0].session_id if args.session else ""
    with only_copies.kept(
        args.name,
        session_id,
        force=args.force,
        hint=f"Fetch them first (`jupyter gpuckpt remote fetch {args.name} SNAPSHOT`) or delete them (`jupyter gpuckpt rm`); with"
        " --force they are lost.",
        forced=" They are lost.",
    ):
        _say_plan(args, plan)
        _confirm(args)
        answer = ask(RemoteVerb.ERASE, args.name, session=session_id)
    done = answer.erasure or Erasure(0, 0, 0, 0, 0)
    if args.json:
        printing.say_json({"plan": plan, "erased": done})
    else:
        _say_done(args, session_id, done)
    if plan.versioned:
        printing.warn(
            "The bucket keeps old versions: what was deleted stays there, hidden, until a life-cycle rule of the bucket removes"
            " noncurrent versions. Until then it can be read with access to the bucket and the secret of an entry of its key."
        )
    if done.left:
        printing.warn(
            f"Still there: {counted(done.left, 'object')}: the right to delete is missing, or a policy of the bucket (Object Lock) forbids"
            " it for a while. Repeat the command when they may be deleted."
        )
    return exit_code(AccessDenied) if done.left else 0


def _say_plan(args: Namespace, plan: ErasePlan) -> None:
    rows = [
        [
            one.session_id,
            one.path or "-",
            one.host_name or "-",
            str(one.snapshots),
            printing.size(one.stored_bytes),
        ]
        for one in plan.sessions
    ]
    heads = ["SESSION", "NOTEBOOK", "FROM", "SNAPSHOTS", "STORED"]
    printing.note(f"This will be erased from remote {args.name} for good:")
    if rows:
        printing.note(printing.table(heads, rows, right=_NUMBERS))
    if plan.unreadable:
        printing.note(f"Its sessions cannot be read: {printing.printable(plan.unreadable)}")
    if args.session:
        printing.note(
            "Chunks that other sessions share with it stay. Their packs are downloaded and written again;"
            " uploads that run meanwhile may send again what they have sent."
        )
    else:
        size = printing.size(plan.stored_bytes)
        printing.note(
            f"All of it, {counted(plan.objects, 'object')}, {size}, and its key: no secret opens it again."
        )


def _confirm(args: Namespace) -> None:
    if args.yes:
        return
    if not sys.stdin.isatty() or printing.typed("Type the remote's name to erase it") != args.name:
        raise OperationCancelled("Nothing was erased.", hint="--yes does not ask.")


def _say_done(args: Namespace, session_id: str, done: Erasure) -> None:
    size = printing.size(done.freed_bytes)
    if not session_id:
        printing.say(f"Remote {args.name} is erased: {size} less.")
        if not done.left:
            printing.say("It is forgotten here. Other machines are refused; remove it there, too.")
        return
    printing.say(
        f"Session {session_id} is erased: {counted(done.snapshots, 'snapshot')}, {size} less."
    )
    if done.rewritten:
        printing.say(f"Rewritten: {counted(done.rewritten, 'pack')} that other sessions share.")
    printing.note(
        "This machine no longer uploads its kernel there automatically; `jupyter gpuckpt remote upload` does. Another machine"
        " that has the kernel uploads its next snapshot again."
    )
