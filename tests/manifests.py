"""Builders of small manifests: no process, no image, only the chunks that a test is about."""

from __future__ import annotations

from jupyter_gpuckpt.store.codecs import digest_of
from jupyter_gpuckpt.wire.manifest_records import (
    Chunk,
    Host,
    LaunchSpec,
    Manifest,
    SnapshotInfo,
    Stream,
)


def manifest_of(info: SnapshotInfo, *streams: Stream) -> Manifest:
    """Return the manifest of a snapshot that has these streams and nothing else."""
    return Manifest(
        info=info,
        launch=LaunchSpec(info.kernel_id, [], {}, "/", ""),
        host=Host("here", "x86_64", "6.1", [], "", [], "/root", "boot"),
        method="skeleton",
        keeper_pid=2,
        kernel_pid=3,
        highest_pid=9,
        processes=[],
        images=[],
        streams=list(streams),
    )


def manifest(
    snapshot_id: str, *chunks: bytes, kernel_id: str = "k", created: float = 1
) -> Manifest:
    """Return the manifest of a snapshot whose only stream consists of these chunks."""
    stream = Stream("a", sum(map(len, chunks)), [Chunk(digest_of(c), len(c)) for c in chunks])
    return manifest_of(SnapshotInfo(snapshot_id, kernel_id, created, "save"), stream)
