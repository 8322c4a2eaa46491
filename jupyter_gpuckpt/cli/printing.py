"""The output of commands: tables, sizes, ages, JSON, errors and the progress bar. The only module that prints.

Results go to stdout; progress, warnings, questions and errors go to stderr.
"""

from __future__ import annotations

import shutil
import sys
import unicodedata
from collections.abc import Collection, Iterable, Sequence
from typing import Self, TextIO

import msgspec

from ..errors import ConfigurationError, OperationCancelled, record_of
from ..wire.plurals import SECONDS_PER_MINUTE, age, size
from ..wire.progress import ProgressRecord

__all__ = ["age", "size"]  # beside what is defined here

BAR_WIDTH = 24
#: The least number of characters of an id in lists; more are shown if they are needed to tell two ids apart.
SHORT_ID = 8


def duration(seconds: float) -> str:
    """Format a duration: `0.15 s`, `12.3 s`, `4 min 05 s`."""
    if seconds < 10:
        return f"{seconds:.2f} s"
    if seconds < SECONDS_PER_MINUTE:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), SECONDS_PER_MINUTE)
    return f"{minutes} min {rest:02d} s"


def short_ids(ids: Iterable[str]) -> dict[str, str]:
    """Return, by id, the shortest prefixes of equal length that tell these ids apart."""
    full = set(ids)
    longest = max(map(len, full), default=0)
    length = SHORT_ID
    while length < longest and len({one[:length] for one in full}) < len(full):
        length += 1
    return {one: one[:length] for one in full}


def printable(text: str) -> str:
    """Return `text` without control characters: names from other users' files could contain terminal escape sequences."""
    return "".join(c if c.isprintable() else "?" for c in text)


def table(
    heads: Sequence[str], rows: Sequence[Sequence[str]], *, right: Collection[str] = ()
) -> str:
    """Format rows in aligned columns, two spaces apart; columns whose head is in `right` are right-aligned."""
    lines = [list(heads), *([printable(cell) for cell in row] for row in rows)]
    widths = [max(map(_width, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(
            " " * (width - _width(cell)) + cell if to_right else cell + " " * (width - _width(cell))
            for cell, width, to_right in zip(
                line, widths, [one in right for one in heads], strict=True
            )
        ).rstrip()
        for line in lines
    )


def _width(text: str) -> int:
    """Return the width of `text` in terminal columns: East Asian characters take two, combining ones none."""
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1
        for c in text
    )


def say(text: str) -> None:
    """Print a result to stdout."""
    print(text)


def say_json(document: object) -> None:
    """Print a result for programs to stdout: one JSON document."""
    print(msgspec.json.format(msgspec.json.encode(document), indent=2).decode())


def result(document: object, text: str, *, as_json: bool) -> None:
    """Print a result, as a document for programs or as a text."""
    say_json(document) if as_json else say(text)


def note(text: str) -> None:
    """Print a note to stderr, such as one before a question."""
    print(text, file=sys.stderr)


def warn(text: str) -> None:
    """Print a warning of a successful command to stderr."""
    print(f"Warning: {printable(text)}", file=sys.stderr)


def fail(error: Exception, *, as_json: bool) -> None:
    """Print an error: to stderr for people, to stdout as `{"error": {...}}` for programs."""
    record = record_of(error)
    if as_json:
        say_json({"error": record})
        return
    print(record.message, file=sys.stderr)
    if record.details:
        print("\n".join(f"  {line}" for line in record.details.splitlines()), file=sys.stderr)
    if hint := f"{record.hint} {record.command}".strip():
        print(f"Hint: {hint}", file=sys.stderr)


def ask(question: str) -> bool:
    """Ask a question on the terminal; return True only for an explicit yes."""
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    answer = sys.stdin.readline()
    if not answer.endswith("\n"):
        print(file=sys.stderr)
    return answer.strip().lower() in {"y", "yes"}


def confirm(question: str, *, yes: bool, kept: str, required: bool = False) -> None:
    """Ask a question on a terminal, unless `yes`. Raises OperationCancelled with the sentence `kept` if the answer is no.

    `required`: without a terminal, too, it is not done unless `yes`; then ConfigurationError is raised.
    """
    if yes:
        return
    if sys.stdin.isatty():
        if not ask(question):
            raise OperationCancelled(kept)
    elif required:
        raise ConfigurationError(
            f"{kept.rstrip('.')}, because this has to be confirmed: {question}",
            hint="Use a terminal, or give --yes.",
        )


def typed(question: str) -> str:
    """Ask on stderr for a line on stdin."""
    print(f"{question}: ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip()


class ProgressBar:
    """A progress bar: one line that is redrawn on a terminal; nothing is printed elsewhere.

    Use it as a context manager, which erases the line at the end.
    """

    def __init__(self, title: str, stream: TextIO | None = None) -> None:
        self._title = title
        self._stream = stream or sys.stderr
        self._shown = self._stream.isatty()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._draw("")

    def show(self, progress: ProgressRecord) -> None:
        """Draw the current progress."""
        self._draw(progress_line(self._title, progress))

    def show_count(self, done: int, total: int) -> None:
        """Draw how many of something are done."""
        full = int(min(1.0, done / total) * BAR_WIDTH) if total else BAR_WIDTH
        self._draw(f"{self._title}  [{'#' * full}{'.' * (BAR_WIDTH - full)}] {done} of {total}")

    def _draw(self, line: str) -> None:
        if self._shown:
            # A line as wide as the terminal would wrap and could not be redrawn.
            room = shutil.get_terminal_size().columns - 1
            print(f"\r\x1b[K{line[:room]}", end="", file=self._stream, flush=True)


def progress_line(title: str, progress: ProgressRecord) -> str:
    """Format progress: `saving  pages  [####....]  50 %  1.0 GB of 2.0 GB  1.2 s`."""
    parts = [title, printable(progress.stage)]
    if progress.total_bytes:
        share = min(1.0, progress.done_bytes / progress.total_bytes)
        full = int(share * BAR_WIDTH)
        parts.append(f"[{'#' * full}{'.' * (BAR_WIDTH - full)}] {share:4.0%}")
        parts.append(f"{size(progress.done_bytes)} of {size(progress.total_bytes)}")
    elif progress.done_bytes:
        parts.append(size(progress.done_bytes))
    parts.append(f"{progress.seconds:.1f} s")
    return "  ".join(part for part in parts if part)
