"""The facts about a snapshot that remotes list, so that its notebook is found there. Unknown facts are left out, never guessed."""

from __future__ import annotations

from typing import Any

from ...remote.remote_sessions import MAX_TEXT_CHARACTERS, Facts
from ...wire.manifest_records import SnapshotInfo


def facts_of(info: SnapshotInfo, jupyter: dict[str, Any]) -> Facts:
    """Return the facts of a snapshot, from its record and from what Jupyter keeps with its kernel (`LaunchSpec.jupyter`).

    The far session's id is the kernel's, which is the same on every machine (but see `LeaseFile.branch`). A kernel without a
    notebook has no path. A kernel without a server (a script's) has neither user nor server.
    """

    def known(name: str) -> str:
        found = jupyter.get(name)
        return found[:MAX_TEXT_CHARACTERS] if isinstance(found, str) else ""

    return Facts(
        session_id=info.kernel_id,
        hub_user=known("hub_user"),
        server_name=known("server_name"),
        path=known("path"),
        title=info.title[:MAX_TEXT_CHARACTERS],
        host_name=info.host_name[:MAX_TEXT_CHARACTERS],
    )
