"""The outcomes of a suspend of all kernels, as the REST interface reports them."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from ...batches.suspend_batch import SuspendOutcome, SuspendReport
from ..rest_records import ErrorView, View, error_view


class OutcomeView(View, frozen=True):
    """The outcome of one kernel in a suspend of all."""

    kernel_id: str
    name: str
    saved: bool
    snapshot_id: Annotated[str, Meta(description="Empty where it was not saved.")]
    size_bytes: Annotated[int, Meta(description="Memory and GPU memory that it used together.")]
    gpu_bytes: int
    since: Annotated[
        float, Meta(description="Seconds since the epoch: when it was suspended; 0: it was not.")
    ]
    seconds: Annotated[
        float, Meta(description="How long its suspend took; 0 if it was suspended before.")
    ]
    error: Annotated[ErrorView | None, Meta(description="Why it was not saved.")]


class ReportView(View, frozen=True):
    """The outcomes of a suspend of all kernels."""

    seconds: float
    kernels: list[OutcomeView]


def report_view(report: SuspendReport) -> ReportView:
    """Return the record of a suspend of many kernels."""
    return ReportView(seconds=report.seconds, kernels=list(map(_outcome_view, report.kernels)))


def _outcome_view(outcome: SuspendOutcome) -> OutcomeView:
    error = error_view(outcome.error) if outcome.error else None
    return OutcomeView(**{**msgspec.structs.asdict(outcome), "error": error})
