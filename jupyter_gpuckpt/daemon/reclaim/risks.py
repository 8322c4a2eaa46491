"""The kernels and snapshots that would be lost with this machine, and the log lines about them."""

from __future__ import annotations

import logging
import time

from ...wire.reclaim_records import Unsafe, now
from ...wire.snapshot_records import UploadState
from ...wire.states import KernelState
from ..kernels.kernels import Kernels, ManagedKernel
from ..remotes.uploads import Uploads

_MINUTE, _HOUR, _DAY = 60.0, 3600.0, 86_400.0
_WITHOUT_PROCESS = frozenset({KernelState.SUSPENDED, KernelState.LOST})

_log = logging.getLogger(__name__)


class Risks:
    """The kernels that are not safe, with the age of what a remote has of them."""

    def __init__(self, kernels: Kernels, uploads: Uploads) -> None:
        self._kernels, self._uploads = kernels, uploads
        #: When uploads began to hurry, and the bytes that were uploaded by then.
        self._began, self._bytes_before = now(), 0

    def unsafe(self, *, disk_survives: bool) -> list[Unsafe]:
        """List the running kernels and, unless the disk survives, those whose latest snapshot is not in a remote yet."""
        found = []
        for kernel in self._kernels:
            runs = kernel.state not in _WITHOUT_PROCESS
            waits = not disk_survives and self._uploads.is_anywhere and self._is_only_local(kernel)
            if not kernel.record.ends and (runs or waits):
                newest = self._uploads.newest_uploaded(kernel.kernel_id)
                at = newest.created if newest else None
                found.append(Unsafe(kernel.kernel_id, kernel.record.name, runs, at))
        return found

    def begin(self) -> None:
        """Log what remotes have of each kernel, because the disk will be lost."""
        self._began, self._bytes_before = now(), self._uploaded_bytes()
        if not self._uploads.is_anywhere:
            _log.warning(
                "Snapshots are uploaded nowhere: if this machine goes with its disk, they are lost. `jupyter gpuckpt remote add`"
                " names a place for them."
            )
            return
        for kernel in self._kernels:
            if kernel.state not in _WITHOUT_PROCESS or self._is_only_local(kernel):
                _log.info("kernel %s: %s", self._named(kernel), self._remote_age(kernel.kernel_id))

    def foresee(self, seconds_left: float) -> None:
        """Log which snapshots will probably not be uploaded in the remaining time at the present rate."""
        if not self._uploads.is_anywhere:
            return
        rate = (self._uploaded_bytes() - self._bytes_before) / max(1e-3, now() - self._began)
        waiting = []
        for kernel in self._kernels:
            upload = self._uploads.progress_of(kernel.record.snapshot_id)
            is_suspended = kernel.state is KernelState.SUSPENDED
            if is_suspended and upload is not None and upload.state is not UploadState.UPLOADED:
                waiting.append((upload.total_bytes - upload.done_bytes, kernel))
        before = 0
        for count_bytes, kernel in sorted(waiting, key=lambda each: each[0]):
            before += count_bytes
            if before > rate * seconds_left:
                _log.warning(
                    "The snapshot of kernel %s will probably not be uploaded: %.0f MB are left, and %.0f s at %.1f MB/s. %s",
                    self._named(kernel),
                    count_bytes / 1e6,
                    seconds_left,
                    rate / 1e6,
                    self._remote_age(kernel.kernel_id),
                )

    def say_not_suspended(self, kernel_id: str, why: str) -> None:
        """Log that a kernel was not suspended and runs on."""
        kernel = self._kernels.find(kernel_id)
        if kernel is not None:
            age = self._remote_age(kernel_id)
            _log.warning("Kernel %s runs on: %s %s", self._named(kernel), why, age)

    def say_lost(self, *, disk_survives: bool) -> None:
        """Log at the deadline which kernels are not safe."""
        for one in self.unsafe(disk_survives=disk_survives):
            kernel = self._kernels.find(one.kernel_id)
            what = "it runs on" if one.is_running else "its snapshot is not uploaded"
            if kernel is not None:
                _log.warning(
                    "Kernel %s is not safe at the deadline: %s. %s",
                    self._named(kernel),
                    what,
                    self._remote_age(one.kernel_id),
                )

    def _is_only_local(self, kernel: ManagedKernel) -> bool:
        has_snapshot = kernel.state is KernelState.SUSPENDED and bool(kernel.record.snapshot_id)
        return has_snapshot and not self._uploads.has(kernel.record.snapshot_id)

    def _uploaded_bytes(self) -> int:
        found = [self._uploads.progress_of(kernel.record.snapshot_id) for kernel in self._kernels]
        return sum(upload.done_bytes for upload in found if upload is not None)

    def _remote_age(self, kernel_id: str) -> str:
        newest = self._uploads.newest_uploaded(kernel_id)
        if newest is None:
            return "No remote has anything of it."
        return f"A remote has its state of {_ago(time.time() - newest.created)} ago."

    def _named(self, kernel: ManagedKernel) -> str:
        return f"{kernel.kernel_id} ({kernel.record.name or 'no notebook'})"


def _ago(seconds: float) -> str:
    for unit, name in ((_DAY, "days"), (_HOUR, "h"), (_MINUTE, "min")):
        if seconds >= 2 * unit:
            return f"{seconds / unit:.0f} {name}"
    return f"{max(0.0, seconds):.0f} s"
