"""Parameters of tests of which a quick run takes some only."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def some_slow(every: Iterable[Any], quick: Collection[Any]) -> list[Any]:
    """Return all of these as parameters; those that are not `quick` are slow. A tuple has one value for each argument."""
    marks = {False: [pytest.mark.slow], True: []}
    return [
        pytest.param(*(one if isinstance(one, tuple) else (one,)), marks=marks[one in quick])
        for one in every
    ]
