"""Facts of file locks and leases, which only the process itself can get again (man fcntl, flock, proc_locks).

CRIU gets them, but a process that closes any descriptor of a file loses its POSIX locks on it, and CRIU closes those by which it
maps files: SQLite's lock on the index of its write-ahead log was lost.
"""

from __future__ import annotations

import fcntl
import re
import struct

from ..injection.call_tables import Call
from .records import Values

#: A line of fdinfo: "1: POSIX  ADVISORY  READ 1234 08:01:5678 128 EOF"; "->" after the number is a process that waits.
_LINE = re.compile(r"\d+: (POSIX|OFDLCK|FLOCK|LEASE) +\w+ +(READ|WRITE) +\S+ \S+ (\d+) (\d+|EOF)")
_FACT = re.compile(r"lock (POSIX|OFDLCK|FLOCK|LEASE) (\d+) (\d+|EOF)")
_NR_FCNTL, _NR_FLOCK = 72, 73
_F_OFD_SETLK, _F_SETLEASE = 37, 1024
#: `struct flock`: type, whence, start, length, pid.
_FLOCK = struct.Struct("=hh4xqqi4x")


def of_line(text: str) -> Values:
    """Return the fact that a line of fdinfo tells, without its first word."""
    match = _LINE.search(text)
    return {f"lock {match[1]} {match[3]} {match[4]}": match[2]} if match else {}


def locking(descriptor: int, fact: str, value: str) -> Call | None:
    """Return the call by which the process gets a lock again without waiting; None for another fact."""
    match = _FACT.fullmatch(fact)
    if match is None or value not in ("READ", "WRITE"):
        return None
    kind, start, end = match.groups()
    access = fcntl.F_RDLCK if value == "READ" else fcntl.F_WRLCK
    if kind == "LEASE":
        return Call(_NR_FCNTL, (descriptor, _F_SETLEASE, access))
    if kind == "FLOCK":
        operation = fcntl.LOCK_SH if value == "READ" else fcntl.LOCK_EX
        return Call(_NR_FLOCK, (descriptor, operation | fcntl.LOCK_NB))
    length = 0 if end == "EOF" else int(end) - int(start) + 1
    command = fcntl.F_SETLK if kind == "POSIX" else _F_OFD_SETLK
    return Call(
        _NR_FCNTL, (descriptor, command, 0), 2, _FLOCK.pack(access, 0, int(start), length, 0)
    )
