"""The filling of a restored tree's private pages: CRIU gets some before it begins; we write the rest while it holds the tasks.

Nothing runs before every byte is in place, not even a signal handler: a refused or short write or a damaged chunk fails the
restore.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Self

from ...errors import ThawFailed
from ...host import processes
from ...host.overcommit import overcommit
from ...wire.manifest_records import Manifest
from ...wire.progress import Progress, Stage
from ..criu import memory_images
from . import page_plan, reservations
from .eager_pages import PagesFile
from .page_plan import PagePlan
from .stopped_pages import StoppedPages

#: A sink for the pages of a stream.
PageSink = StoppedPages | PagesFile
#: The type of `content.Content.to_memory`.
ToMemory = Callable[[Sequence[tuple[str, PageSink]]], Callable[[], None]]


class Filling:
    """A filler of the private pages of one restore. Use it as a context manager around CRIU: it removes its files and ends its threads.

    `folder`: the folder of the pages that CRIU must restore itself; its path is the same here and in the kernel's mount namespace.
    """

    def __init__(self, to_memory: ToMemory, progress: Progress, folder: Path) -> None:
        self._to_memory, self._progress, self._folder = to_memory, progress, folder
        self._sinks: list[tuple[str, StoppedPages]] = []
        self._beside = ThreadPoolExecutor(1, "look-up-pages")
        #: The bytes by which CRIU's part and ours advance the progress: each part reads the whole of every stream that it needs.
        self._criu_length = self._length = 0
        self._has_folder = False
        #: How many bytes of the streams processes share with their parents; complete after `prepare`.
        self.shared_bytes = 0

    @property
    def bytes(self) -> int:
        """The number of bytes that `finish` writes, at most."""
        return self._length

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._beside.shutdown()
        if self._has_folder:
            shutil.rmtree(self._folder, ignore_errors=True)

    def prepare(self, manifest: Manifest, images: Path) -> None:
        """Write CRIU's part into its images, and look up the chunks of the rest. After a plain dump CRIU's images have everything."""
        plans: list[PagePlan] = []
        if manifest.method == "skeleton":
            page_plan.align_areas(manifest, images)
            plans = page_plan.plan(manifest, images)
        reservations.enter(images, overcommit())
        self.shared_bytes = sum(plan.shared_bytes for plan in plans)
        for_criu = [plan for plan in plans if plan.by_criu]
        self._criu_length = sum(plan.stream.length for plan in for_criu)
        self._length = sum(plan.stream.length for plan in plans if plan.by_us)
        self._give_to_criu(for_criu, images)
        for plan in plans:
            if not plan.by_criu:
                memory_images.replace_lazy(images, plan.nspid, [])
            if plan.by_us:
                self._sinks.append((plan.stream.name, StoppedPages(plan.nspid, plan.by_us)))
        if self._sinks:
            self._write = self._beside.submit(self._to_memory, self._sinks)

    def _give_to_criu(self, plans: list[PagePlan], images: Path) -> None:
        if not plans:
            return
        self._folder.mkdir(parents=True, mode=0o700)
        self._has_folder = True
        files = [
            (plan.stream.name, PagesFile(images, plan.nspid, plan.by_criu, self._folder))
            for plan in plans
        ]
        with self._progress.stage(Stage.PAGES, self._criu_length + self._length):
            self._to_memory(files)()

    def finish(self, init_pid: int) -> None:
        """Write the rest into the tasks below init, which have their mappings and do not run. Raises ThawFailed and the store's errors."""
        if not self._sinks:
            return
        by_nspid = {processes.nspid(pid): pid for pid in processes.descendants(init_pid)}
        total = self._criu_length + self._length
        with self._progress.stage(Stage.PAGES, total, done_bytes=self._criu_length):
            for _, sink in self._sinks:
                if sink.nspid not in by_nspid:
                    raise ThawFailed(
                        "CRIU did not restore a process that the snapshot lists.",
                        hint="The snapshot is untouched. Try again.",
                        details=f"process {sink.nspid}",
                    )
                sink.pid = by_nspid[sink.nspid]
            self._write.result()()
