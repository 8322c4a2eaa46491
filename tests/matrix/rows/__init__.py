"""The rows of the matrix, a module for each chapter of its page."""

from tests.matrix.row import Row
from tests.matrix.rows import files, ipc, jupyter, libraries, network, processes, threads, time

#: Title of a chapter -> its rows, in the order of the page.
CHAPTERS: dict[str, list[Row]] = {
    module.CHAPTER: module.ROWS
    for module in (files, ipc, processes, threads, time, network, libraries, jupyter)
}
ROWS = [row for rows in CHAPTERS.values() for row in rows]
