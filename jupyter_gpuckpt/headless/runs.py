"""A batch run on disk: its id, its kernel and its journal. The path of the output notebook identifies it.

runs/<digest of the output's path>/run.json   the record
runs/<digest of the output's path>/journal    the kernel's messages, written by the kernel (`kernel_agent/message_journal.py`)
runs/<digest of the output's path>.lock       held by the runner
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import secrets
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
from nbformat import NotebookNode

from ..errors import KernelBusy
from ..linux.disk_reserve import with_room, write_atomically
from ..wire import decoding


class RunRecord(msgspec.Struct):
    """The record of a batch run. `digest`: of the notebook's cells. `is_ready`: whether the kernel keeps the journal."""

    run_id: str
    kernel_id: str
    digest: str
    is_ready: bool = False

    @property
    def owner_id(self) -> str:
        """Return the id of the kernel's owner, the same for every runner of this run."""
        return f"batch-{self.run_id}"

    def request_id(self, number: int) -> str:
        """Return the id of the run's n-th execute request, by which every runner finds its messages in the journal."""
        return f"{self.run_id}-{number}"


class Run:
    """A batch run's folder, locked by this process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.journal = folder / "journal"

    def read(self) -> RunRecord | None:
        """Return the record that an earlier runner left; None if there is none, or it cannot be read."""
        try:
            return decoding.from_json((self.folder / "run.json").read_bytes(), RunRecord)
        except (OSError, msgspec.DecodeError):
            return None

    def begin(self, digest: str) -> RunRecord:
        """Remove an earlier record and journal, and write the record of a new run."""
        self.forget()
        record = RunRecord(secrets.token_hex(8), str(uuid.uuid4()), digest)
        self.write(record)
        return record

    def write(self, record: RunRecord) -> None:
        """Write the record."""
        with_room(self.folder, lambda: self.folder.mkdir(mode=0o700, parents=True, exist_ok=True))
        write_atomically(self.folder / "run.json", msgspec.json.encode(record))

    def forget(self) -> None:
        """Remove the record and the journal: the run is over."""
        shutil.rmtree(self.folder, ignore_errors=True)


@contextmanager
def locked(data: Path, output: str) -> Iterator[Run]:
    """Yield the run that writes to `output`. Raises KernelBusy if another runner works on it."""
    key = hashlib.sha256(output.encode()).hexdigest()[:32]
    folder = data / "runs" / key
    folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = os.open(f"{folder}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise KernelBusy(
                f"Another process is executing a notebook to {output}.",
                hint="Wait for it to end, or choose another output.",
            ) from None
        yield Run(folder)
    finally:
        os.close(lock)


def digest_of(notebook: NotebookNode, kernel_name: str) -> str:
    """Return a digest of what a run executes: kernel, kinds of cells, their sources and tags."""
    cells = [
        [cell.cell_type, cell.source, cell.metadata.get("tags", [])] for cell in notebook.cells
    ]
    return hashlib.sha256(msgspec.json.encode([kernel_name, cells])).hexdigest()
