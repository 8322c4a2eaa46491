"""The parts of the documentation that are generated from the code when the pages are built.

In a page `<!-- generated: NAME -->` on a line of its own marks the place of a part; NAME is a key of `PARTS`. Nothing is written to disk.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial

from . import benchmarks, command_line, configuration, errors, jupyterlab, repository, rest

PARTS: dict[str, Callable[[], str]] = {
    "architecture": partial(repository.text_of, "ARCHITECTURE.md"),
    "benchmarks": benchmarks.page,
    "changelog": partial(repository.text_of, "CHANGELOG.md"),
    "command line": command_line.page,
    "configuration": configuration.page,
    "contributing": partial(repository.text_of, "CONTRIBUTING.md"),
    "environment": configuration.environment,
    "errors": errors.page,
    "jupyterlab commands": jupyterlab.commands,
    "jupyterlab settings": jupyterlab.settings,
    "rest": rest.page,
}
_PLACE = re.compile(r"^<!-- generated: (.+?) -->$", re.MULTILINE)


def filled(text: str) -> str:
    """Return a page's source with the generated parts in their places. Raises KeyError for a name that is unknown."""
    return _PLACE.sub(lambda place: PARTS[place[1]]().strip() + "\n", text)
