"""Reports of ended operations, whichever client requested them: one log line, one event, and metrics for each.

All of it comes from the daemon's records of this server's kernels. Prometheus reads the metrics at Jupyter's own `/metrics`.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from prometheus_client import Counter, Gauge, Summary

from ...wire.protocol import Operation, OperationKind, OperationState, summary
from ...wire.states import KernelState
from ..kernels.kernel_listener import KernelListener
from ..rest_records import as_event, operation_view

if TYPE_CHECKING:
    import logging

    from jupyter_events import EventLogger

    from ...wire.manifest_records import Sizes
    from ..messages.served_kernel import ServedKernel

SCHEMA = Path(__file__).parent / "operation.yaml"
SCHEMA_ID = "https://events.jupyter.org/jupyter_gpuckpt/operation/v1"


class _Metrics(NamedTuple):
    operations: Counter
    suspends: Counter
    stages: Summary
    sizes: Counter
    kernels: Gauge


@functools.cache
def _metrics() -> _Metrics:
    """Return the metrics of this process: Prometheus has one registry."""
    return _Metrics(
        Counter("gpuckpt_operations", "Operations that have ended.", ["kind", "state"]),
        Counter("gpuckpt_suspends", "Kernels that were suspended, by the reason.", ["cause"]),
        Summary("gpuckpt_stage_seconds", "Time spent in each stage.", ["kind", "stage"]),
        Counter(
            "gpuckpt_bytes",
            "Bytes of snapshots that were taken. raw: memory and images; stored: of these, compressed; new: of these, not in the"
            " store before; deduplicated: the others.",
            ["what"],
        ),
        Gauge("gpuckpt_kernels", "Kernels of this server.", ["state"]),
    )


class EndedOperations(KernelListener):
    """A listener that logs, counts and publishes the ends of operations on this server's kernels."""

    def __init__(
        self, logger: EventLogger, served: dict[str, ServedKernel], log: logging.Logger
    ) -> None:
        self._logger, self._served, self._log = logger, served, log
        #: Running operations: one that had ended before its first record came is not published.
        self._running: set[str] = set()
        logger.register_event_schema(SCHEMA)
        # The gauges are computed whenever the metrics are read.
        for state in KernelState:
            gauge = _metrics().kernels.labels(state=str(state))
            gauge.set_function(functools.partial(_count, served, state))

    def operation_changed(self, operation: Operation, name: str) -> None:
        """Note an operation that began; publish the end of one that had begun."""
        if not operation.is_over:
            self._running.add(operation.operation_id)
        elif operation.operation_id in self._running:
            self._running.discard(operation.operation_id)
            self._publish(operation, name)

    def _publish(self, operation: Operation, name: str) -> None:
        failed = operation.state is not OperationState.SUCCEEDED
        (self._log.warning if failed else self._log.info)("%s: %s", name, summary(operation))
        metrics, kind, result = _metrics(), str(operation.kind), operation.result
        metrics.operations.labels(kind=kind, state=str(operation.state)).inc()
        if result is not None:
            for stage, seconds in result.seconds_by_stage.items():
                metrics.stages.labels(kind=kind, stage=stage).observe(seconds)
            if kind != "resume":
                _count_bytes(result.sizes)
        if operation.kind is OperationKind.SUSPEND and not failed:
            self._count_suspend(operation.kernel_id)
        data: dict[str, Any] = {**as_event(operation_view(operation)), "name": name}
        del data["progress"]
        self._logger.emit(schema_id=SCHEMA_ID, data=data)

    def _count_suspend(self, kernel_id: str) -> None:
        # The kernel's record came before the operation's end.
        served = self._served.get(kernel_id)
        cause = served.kernel.cause if served is not None and served.kernel is not None else None
        if cause is not None:
            _metrics().suspends.labels(cause=str(cause)).inc()


def _count_bytes(sizes: Sizes) -> None:
    counter = _metrics().sizes
    counter.labels(what="raw").inc(sizes.raw_bytes)
    counter.labels(what="stored").inc(sizes.stored_bytes)
    counter.labels(what="new").inc(sizes.new_bytes)
    counter.labels(what="deduplicated").inc(max(0, sizes.stored_bytes - sizes.new_bytes))


def _count(served: dict[str, ServedKernel], state: KernelState) -> int:
    return sum(kernel.state is state for kernel in list(served.values()))
