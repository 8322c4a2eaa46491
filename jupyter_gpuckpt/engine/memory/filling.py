"""The private pages of a restored tree: what CRIU needs before it begins, and what is written into the tasks while CRIU holds them.

Nothing runs before every byte is in place, not even the handler of a signal: whatever is refused, comes short or is damaged fails
the restore.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Self

from ...errors import ThawFailed
from ...host import processes
from ...model import Manifest
from ...progress import Progress, Stage
from ..criu import memory_images
from . import page_plan
from .eager_pages import PagesFile
from .page_plan import PagePlan
from .stopped_pages import StoppedPages

#: Pages of a stream on their way to where they belong.
PageSink = StoppedPages | PagesFile
#: `thaw.Content.to_memory`.
ToMemory = Callable[[Sequence[tuple[str, PageSink]]], Callable[[], None]]


class Filling:
    """The private pages of one restore. Use it as a context manager around CRIU: files and threads of ours go with it.

    `folder`: where CRIU finds the pages that it must put in place itself, at the same path here and there.
    """

    def __init__(self, to_memory: ToMemory, progress: Progress, folder: Path) -> None:
        self._to_memory, self._progress, self._folder = to_memory, progress, folder
        self._sinks: list[tuple[str, StoppedPages]] = []
        self._beside = ThreadPoolExecutor(1, "look-up-pages")
        #: What CRIU's part and ours advance the progress by: both go through all of a stream that they take something from.
        self._criu_length = self._length = 0
        self._has_folder = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._beside.shutdown()
        if self._has_folder:
            shutil.rmtree(self._folder, ignore_errors=True)

    def prepare(self, manifest: Manifest, images: Path) -> None:
        """Give CRIU its part, and begin to look up where the rest lies. Of a plain dump CRIU has everything."""
        plans = page_plan.plan(manifest, images) if manifest.method == "skeleton" else []
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
        """Write all into the tasks below init, which have their memory and do not run. Raises ThawFailed, and what the store raises."""
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
