"""A row of a benchmark: what was measured, how often, and the budget it is held against."""

from __future__ import annotations

import statistics
from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """Samples of one quantity. `budget` is an upper bound on the median in the same unit; None: shown for comparison."""

    name: str
    samples: list[float]
    unit: str = "s"
    budget: float | None = None

    @property
    def median(self) -> float:
        """The middle sample."""
        return statistics.median(self.samples)

    def __str__(self) -> str:
        spread = f"{min(self.samples):.3f} to {max(self.samples):.3f}"
        verdict = ""
        if self.budget is not None:
            word = "within" if self.median <= self.budget else "OVER"
            verdict = f"{word} {self.budget:.2f} {self.unit}"
        return f"{self.name:<58} {self.median:>7.3f} {self.unit:<4} {spread:>20}  n={len(self.samples):<3} {verdict}"
