"""The records of a snapshot that describe files on the disk. Lengths are in bytes."""

from __future__ import annotations

import msgspec


class MappedFile(msgspec.Struct, frozen=True):
    """A program or library that must be unchanged at a resume. `digest`: BLAKE3 of its content; empty if it was not known."""

    path: str
    length: int
    build_id: str = ""
    digest: str = ""


class KeptFile(msgspec.Struct, frozen=True):
    """A file that its user chose to travel with the snapshot (`LaunchSpec.keep_files`). `digest`: BLAKE3; `mode`: permissions."""

    path: str
    length: int
    digest: str
    mode: int

    @property
    def stream(self) -> str:
        """The name of the stream that has its content."""
        return f"kept{self.path}"


class OpenFile(msgspec.Struct, frozen=True, omit_defaults=True):
    """A file that the kernel had open or mapped and that is not in the snapshot: what a resume compares with the file that it finds."""

    path: str
    length: int = 0
    #: How many of its bytes were mapped into the kernel's memory, from the first one on.
    mapped: int = 0
    #: How far it was read: the highest offset of a descriptor that only reads.
    read: int = 0
    #: Whether the kernel writes to it.
    is_written: bool = False
    #: A folder has neither length nor content.
    is_folder: bool = False
    #: Whether it is a database, or its log, and the kernel was in the middle of a transaction.
    in_transaction: bool = False
    #: The time of the last change of its content; 0: not known, as are all of the following.
    mtime_ns: int = 0
    #: The digest of its content, of a large file's beginning and end (`host.file_outlines`); empty: not known.
    digest: str = ""
    #: They tell files apart on the machine of the snapshot until it is started anew (`Host.boot_id`).
    device: int = 0
    inode: int = 0
