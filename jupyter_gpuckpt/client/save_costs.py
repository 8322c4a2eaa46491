"""The cost of periodic saves, which decides how often a kernel is saved at most."""

from __future__ import annotations

from dataclasses import dataclass

#: How often a changed kernel is saved where no user has said it, and the largest share of a processor that this may take.
DEFAULT_SECONDS, DEFAULT_SHARE = 300.0, 0.05
#: A kernel may stand still for this part of the share of a processor that saves may use.
_STANDSTILL_PART = 0.2


@dataclass(frozen=True)
class SaveCost:
    """The cost of a kernel's last periodic save, in seconds: until it was complete, of standstill, of processor time."""

    seconds: float = 0.0
    frozen_seconds: float = 0.0
    processor_seconds: float = 0.0

    def least_seconds(self, share: float) -> float:
        """Return the least time between two saves that take at most this share of a processor."""
        standstill = self.frozen_seconds / (share * _STANDSTILL_PART)
        return max(standstill, self.processor_seconds / share)

    def pause_seconds(self, wanted_seconds: float | None) -> float:
        """Return the time until the next save of a batch run: what its user wants, or by default what its cost permits."""
        if wanted_seconds is not None:
            return wanted_seconds
        return max(DEFAULT_SECONDS, self.least_seconds(DEFAULT_SHARE))
