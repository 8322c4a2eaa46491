"""What a thaw needs of a snapshot's bytes. `snapshots/resume.py` implements it with the store."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from .memory.filling import PageSink


class Writing(Protocol):
    """The reading of streams into files in memory, of which other threads use what is written already."""

    def run(self) -> None:
        """Write all of it, in parallel, each stream from its beginning on."""

    def file(self, stream: str) -> int:
        """Return a descriptor of the file that is as a stream. It can only be read, and other resumes may have the same."""

    def wait_for(self, stream: str, begin: int, end: int) -> int:
        """Wait until `run` has written a stream from `begin` to `end`; return the end of what it has written from there.

        Raises the error of `run`.
        """

    def stop(self) -> None:
        """Make `run` raise OperationCancelled soon, also if it is called later."""


class Content(Protocol):
    """The source of a snapshot's bytes. All methods verify digests."""

    def use(self, folder: Path) -> None:
        """Use a folder of the new tree, on a tmpfs with huge pages, for files in memory that have no name."""

    def to_file(self, jobs: Sequence[tuple[str, Path]]) -> None:
        """Write whole streams into files, in parallel."""

    def writing(self, streams: Sequence[str]) -> Writing:
        """Look up the chunks of streams; return what writes them into files."""

    def to_window(self, stream: str, begin: int, end: int, target: Path) -> None:
        """Make a file of the bytes of a stream between two offsets."""

    def to_memory(self, jobs: Sequence[tuple[str, PageSink]]) -> Callable[[], None]:
        """Look up the chunks that the sinks need; return a function that writes them, in parallel."""

    def images(self, directory: Path) -> None:
        """Write all image files into `directory`."""

    def reader(self, stream: str) -> Callable[[int, int], bytes]:
        """Return a function that reads `stream`: (offset, length) -> bytes."""
