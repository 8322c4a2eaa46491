"""The commands `jupyter gpuckpt remote sessions` and `remote fetch`: listing and fetching snapshots of a remote."""

from __future__ import annotations

import time
from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING

from ...errors import HostIncompatible, SnapshotNotFound
from ...wire import calls
from ...wire.protocol import Operation
from ...wire.remote_listings import FetchEstimate, FetchRequest, ListedSession, RemoteListing
from ...wire.statuses import exit_code
from .. import printing
from ..daemon_calls import daemon, finish
from ..naming import one_of

if TYPE_CHECKING:
    from ...client import Client

_NUMBERS = frozenset({"MEMORY", "STORED"})


def add_arguments(sessions: ArgumentParser, fetching: ArgumentParser) -> None:
    """Add the arguments of `remote sessions` and `remote fetch`."""
    for to in (sessions, fetching):
        to.add_argument("name", metavar="NAME", help="the remote's name")
    fetching.add_argument(
        "snapshot", metavar="SNAPSHOT", help="its id or title, or a part that is unique"
    )
    fetching.add_argument(
        "--check",
        action="store_true",
        help="only print the size of the transfer, and the obstacles to a resume here",
    )
    fetching.add_argument(
        "--force", action="store_true", help="fetch it even if it could not be resumed here"
    )
    how = fetching.add_mutually_exclusive_group()
    how.add_argument(
        "--take-over",
        action="store_true",
        help="fetch it even if another machine runs its session; later changes on that machine become a branch",
    )
    how.add_argument(
        "--as-copy",
        action="store_true",
        help="fetch it without its session, which another machine may run: to inspect it or branch from it",
    )


def list_sessions(args: Namespace) -> int:
    """List the snapshots in a remote, by session."""
    with daemon() as client:
        found = client.send(calls.remote_sessions(args.name))
    if args.json:
        printing.say_json(found)
        return 0
    for why in found.unreadable:
        printing.warn(why)
    short = printing.short_ids(_where(found))
    rows = [
        [
            short[one.snapshot_id],
            session.path or "-",
            _whose(session),
            session.leased_to or "-",
            one.title if one.title not in {"", session.path} else "-",
            printing.age(time.time() - one.created),
            printing.size(one.raw_bytes),
            printing.size(one.stored_bytes),
            "listed" if one.stub else "yes" if one.here else "no",
        ]
        for session in found.sessions
        for one in session.snapshots
    ]
    heads = ["SNAPSHOT", "NOTEBOOK", "FROM", "RUNNING ON", "TITLE"]
    heads += ["CREATED", "MEMORY", "STORED", "HERE"]
    printing.say(printing.table(heads, rows, right=_NUMBERS) if rows else "No snapshots.")
    return 0


def fetch(args: Namespace) -> int:
    """Fetch a snapshot into the local store; with --check return the status of HostIncompatible if it could not be resumed here."""
    with daemon(waits=True) as client:
        snapshot_id, session_id = _one_snapshot(
            args.snapshot, client.send(calls.remote_sessions(args.name))
        )
        estimate = client.send(calls.fetch_estimate(args.name, snapshot_id, session_id))
        if args.check:
            _say_estimate(estimate, as_json=args.json)
            return exit_code(HostIncompatible) if estimate.obstacles else 0
        if not args.json:
            printing.note(_as_text(estimate))
            for why in (*estimate.obstacles * args.force, *_warnings(estimate)):
                printing.warn(why)
        request = FetchRequest(session_id, args.force, args.take_over, args.as_copy)
        operation = _finish(client, client.send(calls.fetch(args.name, snapshot_id, request)))
    if args.json:
        printing.say_json({"operation": operation})
    elif result := operation.result:
        moved, took = printing.size(result.sizes.new_bytes), printing.duration(result.seconds)
        printing.say(f"Fetched snapshot {snapshot_id}: {moved} in {took}.")
        printing.note(f"`jupyter gpuckpt resume {snapshot_id}` brings its kernel back.")
    return 0


def _finish(client: Client, operation: Operation) -> Operation:
    try:
        return finish(client, operation, "fetching")
    except KeyboardInterrupt:
        client.send(calls.cancel(operation.operation_id))
        printing.warn("The fetch is canceled.")
        raise


def _where(listing: RemoteListing) -> dict[str, str]:
    """Return the ids of the sessions of all listed snapshots, by the snapshot's id."""
    return {
        one.snapshot_id: session.session_id
        for session in listing.sessions
        for one in session.snapshots
    }


def _one_snapshot(text: str, listing: RemoteListing) -> tuple[str, str]:
    known = _where(listing)
    titles = {
        one.snapshot_id: one.title for session in listing.sessions for one in session.snapshots
    }
    found = one_of(text, titles)
    if not found:
        raise SnapshotNotFound(
            f"Remote {listing.remote} lists no snapshot {text!r}.",
            hint=f"`jupyter gpuckpt remote sessions {listing.remote}` lists what is there.",
            details="\n".join(listing.unreadable),
        )
    return found, known[found]


def _say_estimate(estimate: FetchEstimate, *, as_json: bool) -> None:
    if as_json:
        printing.say_json(estimate)
        return
    printing.say(_as_text(estimate))
    for why in (*estimate.obstacles, *_warnings(estimate)):
        printing.warn(why)
    if estimate.obstacles:
        printing.say("The kernel could not be resumed here.")
        printing.note(f"Hint: {printing.printable(estimate.hint)}")
    else:
        printing.say("No obstacle is known to resuming the kernel here.")


def _warnings(estimate: FetchEstimate) -> list[str]:
    """Return the warnings of an estimate, with one about the machine that runs the session now."""
    session = estimate.session
    if not session.leased_to:
        return estimate.warnings
    since = printing.age(time.time() - session.leased_since)
    held = f"Its session runs on machine {session.leased_to} (since {since}): it is fetched only with --take-over."
    return [held, *estimate.warnings]


def _as_text(estimate: FetchEstimate) -> str:
    if estimate.snapshot.here and not estimate.snapshot.stub:
        return "The snapshot is here already."
    text = f"About {printing.size(estimate.move_bytes)} have to be fetched"
    if estimate.here_bytes:
        text += f"; {printing.size(estimate.here_bytes)} of the snapshot are here already"
    return f"{text}."


def _whose(session: ListedSession) -> str:
    """Format a session's user and machine, as far as they are known."""
    user = "/".join(filter(None, (session.hub_user, session.server_name)))
    return "@".join(filter(None, (user, session.host_name))) or "-"
