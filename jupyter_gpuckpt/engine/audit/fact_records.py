"""The facts of a tree, and their form in a snapshot."""

from __future__ import annotations

from typing import Literal, NamedTuple

import msgspec

from ...wire import decoding

#: The stream of a snapshot that holds the facts.
STREAM = "audit"
#: The most bytes of facts that a snapshot holds: a plain kernel has 60 KB, a process with 1,000 threads 1 MB.
MAX_BYTES = 32 << 20

#: It changes with the names and meanings of facts: one that an older version did not read is not one that was not there.
VERSION = 1

Values = dict[str, str]
Kind = Literal["process", "thread", "descriptor"]


def plain(values: Values) -> Values:
    """Return facts as valid Unicode: names in Linux are bytes."""
    return {_plain(fact): _plain(value) for fact, value in values.items()}


def _plain(text: str) -> str:
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


class ProcessFacts(msgspec.Struct):
    """The facts of a process. Its pid, thread ids and the pids in values are those of the tree's PID namespace."""

    pid: int
    name: str
    process: Values = {}
    threads: dict[int, Values] = {}
    #: By the number of the descriptor. Of an open file that several descriptors share only one has the facts.
    descriptors: dict[int, Values] = {}

    def of(self, kind: Kind) -> dict[int, Values]:
        """Return the facts of the process itself, or those of its threads or descriptors, by number."""
        if kind == "process":
            return {self.pid: self.process}
        return self.threads if kind == "thread" else self.descriptors


class TerminalQueue(msgspec.Struct):
    """The bytes that wait in one terminal: output for the reader of its main end, and input for the programs in it.

    `descriptor`: the main end in process `pid` of the tree's namespace. `ended`: no program has the other end open any more.
    """

    pid: int
    descriptor: int
    output: bytes = b""
    input: bytes = b""
    ended: bool = False


class Facts(msgspec.Struct):
    """The facts of a tree at one moment. Those of another `version` mean something else."""

    version: int = VERSION
    processes: list[ProcessFacts] = []
    terminals: list[TerminalQueue] = []

    def encoded(self) -> bytes:
        """Return the form that a snapshot holds; no bytes if there are too many."""
        data = msgspec.msgpack.encode(self)
        return data if len(data) <= MAX_BYTES else b""


class Difference(NamedTuple):
    """A fact that is not as it was. `before` and `after` are None where it is missing."""

    pid: int
    kind: Kind
    number: int
    fact: str
    before: str | None
    after: str | None


def decoded(data: bytes | memoryview) -> Facts:
    """Return the facts that a snapshot holds. Raises msgspec.DecodeError."""
    return decoding.from_msgpack(data, Facts)
