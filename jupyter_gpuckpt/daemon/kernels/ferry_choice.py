"""Whether kernels that are started load the ferry library: where a trial of it has succeeded.

The first kernel that asks for it begins the trial (`engine/gpu/ferry/ferry_trial.py`) and waits for it, but not long: a kernel that is
started before the trial has ended has its GPU memory copied by the driver. Without an NVIDIA driver nothing is tried.
"""

from __future__ import annotations

import logging
import threading
import time
from concurrent.futures import Future
from typing import TYPE_CHECKING

import msgspec

from ...host import gpu
from ...wire.manifest_records import LaunchSpec

if TYPE_CHECKING:
    from ...engine.gpu.ferry.ferry_trial import Outcome

_log = logging.getLogger(__name__)

#: How long the start of a kernel waits for a trial.
PATIENCE_SECONDS = 5.0
#: How long after a trial that said nothing, as on a full GPU, the next one is made.
RETRY_SECONDS = 60.0


class FerryChoice:
    """The choice of one daemon. Thread-safe; it never raises."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._trial: Future[Outcome | None] | None = None
        self._began = 0.0

    def resolve(self, spec: LaunchSpec) -> LaunchSpec:
        """Return the spec as the kernel is started: without the ferry where its trial has not succeeded."""
        if spec.gpu_copy != "own" or (gpu.driver_version() and self._works()):
            return spec
        return msgspec.structs.replace(spec, gpu_copy="driver")

    def _works(self) -> bool:
        try:
            found = self._begun().result(PATIENCE_SECONDS)
        except TimeoutError:
            _log.warning("a kernel is started without the ferry, whose trial takes long")
            return False
        if found is not None and not found.works:
            _log.warning("a kernel is started without the ferry: %s", found.reason)
        return found is not None and bool(found.works)

    def _begun(self) -> Future[Outcome | None]:
        with self._lock:
            trial = self._trial
            if trial is not None and not (trial.done() and self._is_worth_repeating(trial)):
                return trial
            self._trial, self._began = Future(), time.monotonic()
            threading.Thread(
                target=_make, args=(self._trial,), name="ferry-trial", daemon=True
            ).start()
            return self._trial

    def _is_worth_repeating(self, trial: Future[Outcome | None]) -> bool:
        found = trial.result()
        return (
            found is None or found.works is None
        ) and time.monotonic() - self._began > RETRY_SECONDS


def _make(trial: Future[Outcome | None]) -> None:
    try:
        from ...engine.gpu.ferry import ferry_trial  # noqa: PLC0415 - without a GPU, a launch does not need it

        trial.set_result(ferry_trial.remembered() or ferry_trial.made())
    except BaseException:
        _log.exception("the ferry could not be tried")
        trial.set_result(None)
