"""A row of a benchmark: what was measured, how often, and the budget it is held against."""

from __future__ import annotations

import statistics

import msgspec

_NAME_WIDTH = 62


class Row(msgspec.Struct, frozen=True):
    """Samples of one quantity.

    `budget` bounds the median in the same unit, from above, or from below with `at_least`; None: shown for comparison. `facts`
    are other things that were found of the same work; they are printed after the numbers. `chart`, `series` and `x` (in
    `x_unit`) say where it is drawn (plots.py); without a chart it is not.
    """

    name: str
    samples: list[float]
    unit: str = "s"
    budget: float | None = None
    at_least: bool = False
    facts: dict[str, str] = {}
    chart: str = ""
    series: str = ""
    x: float | str = ""
    x_unit: str = ""

    @property
    def median(self) -> float:
        """The middle sample."""
        return statistics.median(self.samples)

    @property
    def within(self) -> bool:
        """Whether the budget is kept; true where there is none."""
        if self.budget is None:
            return True
        return self.median >= self.budget if self.at_least else self.median <= self.budget

    def __str__(self) -> str:
        spread = f"{min(self.samples):.3f} to {max(self.samples):.3f}"
        words = [
            f"{self.name:<{_NAME_WIDTH}} {self.median:>8.3f} {self.unit:<5} {spread:>20}"
            f"  n={len(self.samples):<3}"
        ]
        if self.budget is not None:
            verdict, bound = "within" if self.within else "OVER", "at least " * self.at_least
            words.append(f"{verdict} {bound}{self.budget:.2f} {self.unit}")
        words += [f"{name}: {text};" for name, text in self.facts.items()]
        return " ".join(words).rstrip("; ")


def ratios(above: list[float], below: list[float]) -> list[float]:
    """How many times as long `above` took as `below`, round by round."""
    return [one / other for one, other in zip(above, below, strict=True)]
