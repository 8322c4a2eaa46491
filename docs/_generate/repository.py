"""The text of pages that are files of the repository, with links adapted to the pages."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
#: Files of the repository that have a page.
PAGES = {
    "ARCHITECTURE.md": "architecture.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "README.md": "index.md",
}


def text_of(name: str) -> str:
    """Return a file's text; links to other files of the repository lead to their pages."""
    return re.sub(r"\]\(([^)#\s]+)", _link, (ROOT / name).read_text())


def _link(found: re.Match[str]) -> str:
    target = found[1]
    return f"]({PAGES.get(target, target.removeprefix('docs/'))}"
