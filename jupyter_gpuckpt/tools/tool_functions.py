"""The tools: each public method of `Tools` is one, with its docstring as its description.

Answers are small: long output is cut, and `read_output` shows the rest. Sessions are named by id, by a beginning of it, or by notebook.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from contextlib import nullcontext, suppress
from typing import Any, Literal, TypeVar

import msgspec

from ..client.cell_output import CellOutput
from ..errors import (
    ConfigurationError,
    DaemonUnavailable,
    GpuCkptError,
    KernelNotFound,
    KernelStateConflict,
    LimitReached,
    SnapshotNotFound,
)
from ..wire.plurals import counted
from ..wire.protocol import FilesChoice
from ..wire.states import ALIVE, KernelState
from ..wire.tool_branches import is_branch_of, origin_of
from ..wire.variable_changes import Comparison
from .backing import Backing, SavedState, Session
from .tool_progress import tell

_Value = TypeVar("_Value")

#: The tools that change nothing, and those that do.
READING = ("list_sessions", "list_snapshots", "compare", "read_output")
CHANGING = (
    "save",
    "restore",
    "branch",
    "suspend",
    "resume",
    "run_in",
    "try_each",
    "keep_branch",
    "end_branch",
)
#: The most items of a list in an answer, characters of one item, and outputs that are remembered.
_SHOWN, _SHOWN_CHARACTERS, _REMEMBERED = 50, 200, 100
_MAX_PIECES = 64
#: The part of the free memory that branches may take.
_USABLE = 0.8
#: The pauses, in seconds, before what failed because the daemon was being restarted is tried again.
_PAUSES = (1.0, 4.0, 10.0)


class Limits(msgspec.Struct, frozen=True):
    """What tools may use. `branches`: branches at the same time, in all; `at_once`: those that run code at the same time."""

    branches: int = 12
    at_once: int = 4


class Tools:
    """The tools over some owners of kernels.

    `find`: returns the owners that are there now; the first that lists a kernel has it. `free_bytes`: returns how much memory is free;
    None if that is not known.
    """

    def __init__(
        self,
        find: Callable[[], Awaitable[list[Backing]]],
        free_bytes: Callable[[], Awaitable[int | None]],
        limits: Limits = Limits(),  # noqa: B008 - it is frozen
    ) -> None:
        self._find, self._free_bytes, self._limits = find, free_bytes, limits
        self._outputs: OrderedDict[str, CellOutput] = OrderedDict()

    async def list_sessions(self) -> dict[str, Any]:
        """List the notebooks' kernels (sessions) and the branches of them, with state, memory and the snapshot they came from.

        A suspended session has no process but keeps its variables; running code in it resumes it.
        """
        found = [one for _, one in await self._sessions()]
        return {"sessions": [_without_empty(one) for one in found]}

    async def list_snapshots(
        self, session: str = "", limit: int = 20, skip: int = 0
    ) -> dict[str, Any]:
        """List saved states, newest first: of one session (id or notebook) and its branches, or all.

        `limit` and `skip` page through long lists; `left` says how many more there are.
        """
        wanted = (await self._session(session))[1] if session else None
        origin = origin_of(wanted.name, wanted.session) if wanted else ""
        now = time.time()
        found = [
            one
            for _, one in await self._snapshots()
            if not origin or origin_of(one.name, one.session) == origin
        ]
        limit, skip = max(1, min(limit, 100)), max(0, skip)
        shown = found[skip : skip + limit]
        return {
            "snapshots": [
                {
                    "snapshot": one.snapshot,
                    "session": one.session,
                    "name": one.name,
                    "title": one.title[:_SHOWN_CHARACTERS],
                    "seconds_ago": round(now - one.created, 1),
                    "cause": one.cause,
                    "memory_bytes": one.memory_bytes,
                }
                for one in shown
            ],
            "left": max(0, len(found) - skip - len(shown)),
        }

    async def compare(self, first: str, second: str = "") -> dict[str, Any]:
        """Compare two states, each a snapshot id or a session: which variables and files were added, removed or changed.

        Without `second`, the state of the same session now. `unknown`: values that cannot be compared. Changes of text files are
        shown as a diff.
        """
        owner, moment = await self._moment(first)
        if second:
            other = (await self._moment(second))[1]
        elif isinstance(moment, SavedState):
            other = await self._live_of(moment)
        else:
            raise ConfigurationError(
                "A session cannot be compared with itself.",
                hint="Give the id of one of its snapshots, as list_snapshots shows them.",
            )
        found = await owner.compare(_id_of(moment), _id_of(other))
        return _comparison(found)

    async def read_output(
        self, output_id: str, offset: int = 0, length: int = 4000
    ) -> dict[str, Any]:
        """Read a part of the output that run_in or try_each cut, by its `output_id`."""
        if output_id not in self._outputs:
            raise ConfigurationError(
                f"There is no output {output_id}.",
                hint=f"The outputs of the last {_REMEMBERED} runs are kept. Run the code again.",
            )
        return self._outputs[output_id].part(max(0, offset), max(1, min(length, 20_000)))

    async def save(self, session: str, title: str = "") -> dict[str, Any]:
        """Save a session's whole state (variables, GPU memory, files) as a snapshot; it runs on. `restore` and `branch` go back to it.

        The files are those of the folder in which the notebook's kernel was started, without notebooks and what .gitignore files name;
        a warning tells if they could not be saved.

        The last ones that tools took of a notebook are kept; a person can pin one to keep it for good.
        """
        owner, found = await self._session(session)
        return _without_empty(await self._again(lambda: owner.save(found.session, title)))

    async def restore(self, snapshot: str, session: str = "", files: bool = True) -> dict[str, Any]:
        """Take a session back to a snapshot, with its files. Its present state is saved first, as `saved_before`; so this can be undone.

        `session`: by default the snapshot's own. A snapshot of a branch can be restored into its notebook's session. `files`: false
        leaves the files as they are.
        """
        owner, saved = await self._snapshot(snapshot)
        if session:
            owner, found = await self._session(session)
        else:
            found = await self._live_of(saved)
            owner = (await self._session(found.session))[0]
        return await self._restored(owner, found, saved.snapshot, "restore" if files else "")

    async def branch(self, state: str) -> dict[str, Any]:
        """Start a second session from a state, beside the first one: from a snapshot, or from a session as it is now.

        `run_in` runs code in it, `keep_branch` makes it the notebook's, `end_branch` ends it. It has a copy of the working folder's files,
        at the same path, if the snapshot has them; else it shares them with the original.
        """
        owner, snapshot_id = await self._saved(state)
        await self._require_room(1)
        session = await self._again(lambda: owner.branch(snapshot_id))
        return {"session": session, "snapshot": snapshot_id}

    async def suspend(self, session: str, title: str = "") -> dict[str, Any]:
        """Save a session and free its memory and GPU; it keeps its variables. The next code that runs in it resumes it."""
        owner, found = await self._session(session)
        return _without_empty(await self._again(lambda: owner.suspend(found.session, title)))

    async def resume(self, session: str) -> dict[str, Any]:
        """Bring a suspended session back; one that runs is not changed."""
        owner, found = await self._session(session)
        if found.state in ALIVE and found.state is not KernelState.PARKED:
            return {"session": found.session, "state": found.state}
        return _without_empty(await self._again(lambda: owner.resume(found.session)))

    async def run_in(self, session: str, code: str, timeout_seconds: float = 120) -> dict[str, Any]:
        """Run Python code in a session or branch; return how it ended and its output. No cell is added to the notebook.

        After `timeout_seconds` it is interrupted. Long output is cut: `read_output` shows the rest.
        """
        owner, found = await self._session(session)
        return (await self._run(owner, found.session, code, timeout_seconds)).shown()

    async def try_each(
        self,
        state: str,
        codes: list[str],
        then: Literal["keep", "save", "end"] = "keep",
        timeout_seconds: float = 120,
    ) -> dict[str, Any]:
        """Run each piece of code in a branch of its own, all from the same state: a snapshot, or a session as it is now.

        `then`: what happens to a branch whose code succeeded. "keep": it stays, for keep_branch or run_in. "save": it is saved as
        a snapshot, from which try_each and branch go on, and ended. "end": it is ended, only its output is wanted. Branches whose code
        failed are ended; the original is not changed.
        """
        if then not in {"keep", "save", "end"} or not 1 <= len(codes) <= _MAX_PIECES:
            raise ConfigurationError(
                f"There are {counted(len(codes), 'piece')} of code, and then={then!r}.",
                hint=f'Give 1 to {_MAX_PIECES} pieces of code, and one of "keep", "save" and "end".',
            )
        owner, snapshot_id = await self._saved(state)
        branches = len(codes) if then == "keep" else min(len(codes), self._limits.at_once)
        at_once = await self._require_room(branches, snapshot_id)
        turn, ended = asyncio.Semaphore(at_once), 0

        async def one(code: str) -> dict[str, Any]:
            nonlocal ended
            async with turn:
                found = await self._try(owner, snapshot_id, code, then, timeout_seconds)
            ended += 1
            await tell(f"{ended} of {len(codes)} pieces of code are done")
            return found

        return {"snapshot": snapshot_id, "tries": await _all(map(one, codes))}

    async def keep_branch(
        self, branch: str, files: Literal["merge", "restore", ""] = "merge"
    ) -> dict[str, Any]:
        """Make a branch's state that of its notebook's session, and end the branch.

        `files`: "merge" takes the files that the branch changed; if the session's were changed as well, nothing happens, and the error
        names them. "restore" takes all files of the branch, "" none. The session's present state is saved first, as `saved_before`, so
        `restore` can undo this. Cells of the notebook are not changed.
        """
        owner, found = await self._session(branch)
        if not found.is_branch:
            raise ConfigurationError(
                f"{found.name} is not a branch that a tool made.",
                hint="`branch` and `try_each` make branches; list_sessions lists them.",
            )
        original = await self._notebook_session(found.name)
        snapshot_id = found.snapshot
        if found.state in ALIVE:
            saved = await self._again(lambda: owner.save(found.session, "kept branch"))
            snapshot_id = saved.snapshot
        answer = await self._restored(owner, original, snapshot_id, files)
        await owner.end_branch(found.session)
        return answer | {"ended": found.session}

    async def end_branch(self, branch: str) -> dict[str, Any]:
        """End a branch that a tool made and free its memory; its snapshots stay."""
        owner, found = await self._session(branch)
        await owner.end_branch(found.session)
        return {"ended": found.session}

    async def _try(
        self, owner: Backing, snapshot_id: str, code: str, then: str, seconds: float
    ) -> dict[str, Any]:
        """Run code in a new branch; errors of the branch are part of the answer."""
        branch_id, kept = "", False
        try:
            branch_id = await self._again(lambda: owner.branch(snapshot_id))
            output = await self._run(owner, branch_id, code, seconds)
            answer = output.shown()
            if output.status == "ok" and then == "save":
                title = code.strip().splitlines()[0] if code.strip() else ""
                saved = await self._again(lambda: owner.save(branch_id, title[:_SHOWN_CHARACTERS]))
                answer["snapshot"] = saved.snapshot
            elif output.status == "ok" and then == "keep":
                kept, answer["session"] = True, branch_id
        except GpuCkptError as error:
            answer = {"status": "failed", "error": told(error)}
        finally:
            if branch_id and not kept:
                await asyncio.shield(_quietly(owner.end_branch(branch_id)))
        return answer

    async def _run(self, owner: Backing, kernel_id: str, code: str, seconds: float) -> CellOutput:
        if not 0 < seconds <= 86_400:
            raise ConfigurationError(
                f"The code cannot run for {seconds} seconds.", hint="Give 1 to 86400 seconds."
            )
        output = CellOutput()
        self._outputs[output.output_id] = output
        while len(self._outputs) > _REMEMBERED:
            self._outputs.popitem(last=False)
        await owner.run(kernel_id, code, output, seconds)
        return output

    async def _restored(
        self, owner: Backing, session: Session, snapshot_id: str, files: FilesChoice
    ) -> dict[str, Any]:
        before = {one.snapshot for _, one in await self._snapshots()}
        done = await self._again(lambda: owner.restore(session.session, snapshot_id, files))
        new = [one for _, one in await self._snapshots() if one.session == session.session]
        saved = next((one.snapshot for one in new if one.snapshot not in before), session.snapshot)
        return {"session": session.session, "saved_before": saved} | _without_empty(done)

    async def _require_room(self, branches: int, snapshot_id: str = "") -> int:
        """Raise LimitReached if there is no room for so many more branches; return how many may run at once."""
        alive = sum(one.is_branch for _, one in await self._sessions())
        if alive + branches > self._limits.branches:
            raise LimitReached(
                f"Branches: {alive} exist, {branches} would be added, and at most {self._limits.branches} are allowed.",
                hint='End some with end_branch, or use try_each with then="save", which keeps snapshots instead.',
            )
        if not snapshot_id:
            return 1
        size = next(
            (one.memory_bytes for _, one in await self._snapshots() if one.snapshot == snapshot_id),
            0,
        )
        free = await self._free_bytes()
        if not size or free is None:
            return self._limits.at_once
        fit = int(free * _USABLE) // size
        if fit < 1:
            raise LimitReached(
                f"A branch needs about {size / 1e9:.1f} GB, and {free / 1e9:.1f} GB of memory are free.",
                hint="End branches, or suspend sessions that are not used.",
            )
        return min(fit, self._limits.at_once)

    async def _again(self, work: Callable[[], Coroutine[None, None, _Value]]) -> _Value:
        """Do something; try again if the daemon was being restarted."""
        for pause in _PAUSES:
            try:
                return await work()
            except DaemonUnavailable:
                await asyncio.sleep(pause)
        return await work()

    async def _sessions(self) -> list[tuple[Backing, Session]]:
        """List all sessions. One that may be of a server that cannot be asked tells so as its problem."""
        found: dict[str, tuple[Backing, Session]] = {}
        trouble = ""
        for owner in await self._find():
            try:
                listed = await owner.sessions()
            except GpuCkptError as error:
                if not owner.is_server:
                    raise
                trouble = told(error)
                continue
            for one in listed:
                if trouble and not owner.is_server:
                    one = msgspec.structs.replace(one, problem=trouble, can_be_saved=False)  # noqa: PLW2901
                found.setdefault(one.session, (owner, one))
        return list(found.values())

    async def _snapshots(self) -> list[tuple[Backing, SavedState]]:
        found: dict[str, tuple[Backing, SavedState]] = {}
        for owner in await self._find():
            with suppress(GpuCkptError) if owner.is_server else nullcontext():
                for one in await owner.snapshots():
                    found.setdefault(one.snapshot, (owner, one))
        return sorted(found.values(), key=lambda each: -each[1].created)

    async def _session(self, text: str) -> tuple[Backing, Session]:
        """Return the session that a text names: an id, a notebook's path or name, or the beginning of an id."""
        known = await self._sessions()
        ways: tuple[Callable[[Session], bool], ...] = (
            lambda one: text in {one.session, one.name},
            lambda one: not one.is_branch and text == one.name.rpartition("/")[2],
            lambda one: len(text) > 3 and one.session.startswith(text),
        )
        for way in ways:
            found = [each for each in known if way(each[1])]
            if len(found) == 1:
                owner, one = found[0]
                if not owner.is_server and not one.can_be_saved:
                    # A server may have it: past that, its pages would not know.
                    raise ConfigurationError(
                        f"Session {one.session} may be one of a Jupyter server that cannot be asked. {one.problem}",
                        hint="Give the server's address (--url) and token.",
                    )
                return found[0]
            if found:
                ids = ", ".join(f"{one.session} ({one.name})" for _, one in found[:_SHOWN])
                raise ConfigurationError(
                    f"{text!r} can mean any of {ids}.", hint="Give a whole id."
                )
        raise KernelNotFound(
            f"There is no session {text!r}.", hint="list_sessions shows the sessions."
        )

    async def _snapshot(self, text: str) -> tuple[Backing, SavedState]:
        """Return the snapshot of an id, with the owner that has its kernel, or its notebook's."""
        found = next((each for each in await self._snapshots() if each[1].snapshot == text), None)
        if found is None:
            raise SnapshotNotFound(
                f"There is no snapshot {text!r}.",
                hint="list_snapshots shows the snapshots. Old ones that tools took are removed.",
            )
        owner, saved = found
        origin = origin_of(saved.name, saved.session)
        for other, one in await self._sessions():
            if saved.session == one.session or one.session.startswith(origin):
                return other, saved
        return owner, saved

    async def _moment(self, text: str) -> tuple[Backing, Session | SavedState]:
        try:
            return await self._snapshot(text)
        except SnapshotNotFound:
            try:
                return await self._session(text)
            except KernelNotFound:
                raise KernelNotFound(
                    f"There is no session and no snapshot {text!r}.",
                    hint="list_sessions and list_snapshots show them.",
                ) from None

    async def _saved(self, state: str) -> tuple[Backing, str]:
        """Return a snapshot of a state: the named one, or of a session that runs a new one."""
        owner, moment = await self._moment(state)
        if isinstance(moment, SavedState):
            return owner, moment.snapshot
        if moment.state not in ALIVE and moment.snapshot:
            return owner, moment.snapshot
        return owner, (await self._again(lambda: owner.save(moment.session, ""))).snapshot

    async def _live_of(self, saved: SavedState) -> Session:
        """Return the session of a snapshot; if that branch has ended, its notebook's."""
        for _, one in await self._sessions():
            if one.session == saved.session:
                return one
        return await self._notebook_session(saved.name)

    async def _notebook_session(self, name: str) -> Session:
        for _, one in await self._sessions():
            if is_branch_of(name, one.session):
                return one
        raise KernelStateConflict(
            f"The session of {name} has ended.",
            hint="`branch` starts a session from the snapshot; a person can resume it in the page.",
        )


def told(error: GpuCkptError) -> str:
    """Return an error as tools tell it: the cause, what can be done, and the code."""
    again = " It may succeed when it is tried again." if error.retryable else ""
    return f"{error.message} {error.hint}{again} [{error.code}]".replace("  ", " ")


async def _all(works: Iterable[Coroutine[None, None, _Value]]) -> list[_Value]:
    """Do all at the same time; if this is canceled or one fails, cancel the others and wait until they have cleaned up."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _quietly(work: Coroutine[None, None, None]) -> None:
    with suppress(GpuCkptError):  # it may have ended by itself
        await work


def _id_of(moment: Session | SavedState) -> str:
    return moment.snapshot if isinstance(moment, SavedState) else moment.session


def _without_empty(record: msgspec.Struct) -> dict[str, Any]:
    found = msgspec.to_builtins(record)
    return {
        name: value
        for name, value in found.items()
        if value not in ("", 0, []) and value is not True
    }


def _comparison(found: Comparison) -> dict[str, Any]:
    """Return a comparison in short: names, kinds and summaries of variables, and the files with their differences."""

    def short(variables: Iterable[Any]) -> list[str]:
        return [f"{one.name}: {one.kind} {one.summary}"[:_SHOWN_CHARACTERS] for one in variables]

    changed = [
        f"{one.name}: {one.then.kind} {one.then.summary} -> {one.now.kind} {one.now.summary}"
        for one in found.changed
    ]
    lists = {
        "added": short(found.added),
        "removed": short(found.removed),
        "changed": [one[: 2 * _SHOWN_CHARACTERS] for one in changed],
        "unknown": found.unknown,
    }
    answer: dict[str, Any] = {name: one[:_SHOWN] for name, one in lists.items()}
    answer["same"] = found.same
    if found.files is not None:
        answer["files"] = [_without_empty(one) for one in found.files.files]
        if found.files.left:
            answer["files_left"] = found.files.left
    left = sum(max(0, len(one) - _SHOWN) for one in lists.values())
    return answer | ({"left": left} if left else {})
