"""The TCP connections of a kernel in a save: which of them a suspend cuts, and what of the others is stored."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ..engine.freeze import Frozen
from ..engine.settings import EngineSettings
from ..engine.tcp import record, unaccepted
from ..engine.tcp.remake import RemadeConnections
from ..engine.tree.launch import pids
from ..engine.tree.tree import Tree
from ..errors import KernelNotCheckpointable
from ..host import connections
from ..images.pack import BytesSource, Packed, Source, pack
from ..store.local import LocalStore
from ..wire.manifest_records import LaunchSpec, Manifest
from ..wire.plurals import some
from ..wire.progress import Progress


def outer(tree: Tree, spec: LaunchSpec, *, cut: bool) -> list[str]:
    """Return warnings of the connections with other processes that a suspend cuts; a save cuts none."""
    own = set(spec.own_ports)
    found = connections.survey(pids(tree)).outer
    return _cut(
        [str(end) for end in found if not own & {end.row.local.port, end.row.remote.port}], cut=cut
    )


def lost(state: Frozen, spec: LaunchSpec, *, cut: bool) -> list[str]:
    """Return warnings of the connections within the tree that a resume of this snapshot will not restore."""
    found = unkept(state, spec)
    unread = memoryview(state.tcp.queues)
    with RemadeConnections(
        state.tcp.connections, lambda at, length: bytes(unread[at : at + length]), rehearsal=True
    ) as made:
        found += made.lost
    return _cut(found, cut=cut)


def unkept(state: Frozen, spec: LaunchSpec) -> list[str]:
    """Return the names of inner connections that the snapshot lacks, except those on the kernel's own ports, whose peers reconnect."""
    own = set(spec.own_ports)
    return [lost.text for lost in state.tcp.lost if not own & set(lost.ports)]


def listening(tree: Tree, spec: LaunchSpec) -> list[int]:
    """Return the ports on which programs of the tree listen, except the kernel's own."""
    found = {end.row.local.port for end in connections.listeners(pids(tree))}
    return sorted(found - set(spec.own_ports))


def _cut(found: Sequence[str], *, cut: bool) -> list[str]:
    if not found:
        return []
    shown = some(found)
    if not cut:
        raise KernelNotCheckpointable(
            f"The kernel has network connections that a suspend would cut: {shown}.",
            hint="Suspend it yourself if these connections can be made again, or close them.",
        )
    return [f"Network connections were cut: {shown}."]


def queues(state: Frozen) -> list[Source]:
    """Return the stream with what was received and not read."""
    if not state.tcp.queues:
        return []
    return [BytesSource(record.STREAM, state.tcp.queues)]


def published_with_unaccepted(
    manifest: Manifest,
    state: Frozen,
    store: LocalStore,
    settings: EngineSettings,
    progress: Progress,
) -> Manifest:
    """Store what clients in the tree have sent to listeners that have not accepted them; publish and return the manifest with it."""
    sent = state.tcp.take_unaccepted()
    source = BytesSource(unaccepted.STREAM, sent)
    packed = (
        pack([source], store, threads=settings.threads, progress=progress)
        if sent
        else Packed.of_nothing()
    )
    streams = [*manifest.streams, *packed.streams]
    complete = msgspec.structs.replace(manifest, streams=streams, connections=state.tcp.connections)
    with store.staged(complete) as staged:
        staged.publish()
    return complete
