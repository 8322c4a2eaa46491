"""A row of the matrix: a kind of state that a kernel can hold, and what becomes of it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """One kind of state: a cell that makes it and a cell that uses it. OUTSIDE_PORT in them is a port of another program.

    `use` runs before the first save and after every step (save, suspend and resume, suspend and resume again); it raises where
    the state is not as it must be. What `use` needs to know it takes from variables of the kernel.
    """

    name: str
    title: str
    begin: str
    use: str
    #: Completes the sentence "It works, except that ..."; `use` allows for it.
    exception: str = ""
    #: A pattern that the error of a save and of a suspend must match: the kernel is refused and runs on.
    refused: str = ""
    #: A pattern that every warning of its operations must match; without it there must be none.
    warned: str = ""
    #: Only root can make it.
    rights: bool = False
    #: Modules without which the row cannot run.
    needs: tuple[str, ...] = ()
    #: The row is part of `make test`, where those that work share a kernel.
    quick: bool = False
    kernel: str = "python3"
    #: Seconds that a cell may take.
    patience: float = 150
