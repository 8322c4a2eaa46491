"""The examples of the documentation, which tests execute as they stand there."""

from __future__ import annotations

import re
from pathlib import Path

DOCS = Path(__file__).parent.parent / "docs"
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: str, language: str) -> list[str]:
    """Return a page's examples in a language."""
    text = (DOCS / page).read_text()
    return [code for named, code in _BLOCK.findall(text) if named == language]


def block(page: str, language: str, part: str) -> str:
    """Return the only example that contains this part."""
    (found,) = [code for code in blocks(page, language) if part in code]
    return found
