"""Compares two ways to store a second save after few pages changed: chunks composed of stored ones, and whole chunks.

One page in a hundred of a numpy array, a column of a pandas DataFrame, values all over it, and objects of Python that are referred
to once more, so that their reference counts changed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import msgspec

from jupyter_gpuckpt.store import manifests
from jupyter_gpuckpt.store.local import LocalStore
from jupyter_gpuckpt.wire.manifest_records import Manifest
from jupyter_gpuckpt.wire.progress import Progress, Stage

from .engine_kernel import EngineKernel, engine_kernel, scratch
from .measured import Row
from .room import GB, scaled

#: What the change of one page in a hundred may take, in per cent of the first save.
BUDGET_PERCENT = 5.0
#: By title: what makes the memory of `size` bytes, and what changes it.
KINDS = {
    "numpy, 1 % of the pages": (
        "import numpy as np; g = np.random.default_rng(1)\nmemory = g.standard_normal(size // 8)",
        "pages = memory[: len(memory) // 512 * 512].reshape(-1, 512)\n"
        "pages[g.choice(len(pages), len(pages) // 100, replace=False)] += 1",
    ),
    "pandas, a column": (
        "import numpy as np, pandas as pd; g = np.random.default_rng(1)\n"
        "frame = pd.DataFrame({f'c{i}': g.standard_normal(size // 8 // 40) for i in range(40)})",
        "frame['c7'] = frame['c7'] * 2",
    ),
    "pandas, 1,000 values": (
        "import numpy as np, pandas as pd; g = np.random.default_rng(1)\n"
        "frame = pd.DataFrame(g.standard_normal((size // 8 // 40, 40)))",
        "frame.iloc[g.choice(len(frame), 1000, replace=False), 7] = 0.0",
    ),
    "Python's objects, collected": (
        "import gc, random; random.seed(1)\n"
        "heap = [{'id': i, 'name': f'user {i}', 'next': (i, i + 1)} for i in range(size // 500)]",
        "gc.collect(); sum(len(each) for each in heap)",
    ),
    "Python's objects, 1 % referred to": (
        "import gc, random; random.seed(1)\n"
        "heap = [{'id': i, 'name': f'user {i}', 'next': (i, i + 1)} for i in range(size // 500)]\n"
        "random.shuffle(heap)",
        "kept = heap[: len(heap) // 100]",
    ),
}


def run() -> Iterator[Row]:
    """Each kind in a kernel and a store of its own."""
    size = scaled(0.5, max_gb=2, memory=3, disk=3)
    for kind, (setup, change) in KINDS.items():
        with (
            scratch() as directory,
            engine_kernel(directory, f"size = {int(size * GB)}\n{setup}") as kernel,
            LocalStore(directory / "composed") as store,
            LocalStore(directory / "whole") as other,
        ):
            yield from _measure(kind, kernel, store, other, change)


def _measure(
    kind: str, kernel: EngineKernel, store: LocalStore, other: LocalStore, change: str
) -> Iterator[Row]:
    first, stored = _save(kernel, store)
    _save(kernel, other)
    kernel.run(change)
    composed, seconds = _save(kernel, store)
    # Under another id it has no earlier snapshot.
    stranger = replace(kernel, spec=msgspec.structs.replace(kernel.spec, kernel_id="stranger"))
    whole, seconds_whole = _save(stranger, other)
    again, seconds_again = _save(kernel, store)
    base = first.info.sizes.new_bytes
    yield Row(f"{kind}: first save, stored", [base / 1e6], "MB", facts={"in": f"{stored:.2f} s"})
    for what, made, spent in (("composed", composed, seconds), ("whole", whole, seconds_whole)):
        new = 100 * made.info.sizes.new_bytes / base
        held = kind.startswith("numpy") and made is composed
        facts = {"stored in": f"{spent:.2f} s", "manifest": f"{_length(made) / 1e3:.0f} KB"}
        yield Row(
            f"    second save, {what}, new",
            [new],
            "%",
            BUDGET_PERCENT if held else None,
            facts=facts,
            chart="new bytes of a second save",
            series=what,
            x=kind,
        )
    yield Row(
        "    third save, nothing changed, new",
        [100 * again.info.sizes.new_bytes / base],
        "%",
        facts={"stored in": f"{seconds_again:.2f} s"},
    )
    for what, made, place in (("composed", composed, store), ("whole", whole, other)):
        pages = []
        for _ in range(3):
            kernel.kill()
            _, progress = kernel.resume(made, place)
            pages.append(progress.seconds_by_stage[Stage.PAGES])
        yield Row(f"    resume, {what}: filling pages", pages)


def _save(kernel: EngineKernel, store: LocalStore) -> tuple[Manifest, float]:
    """Return the snapshot, and the seconds of storing it."""
    progress = Progress()
    manifest = kernel.save(store, progress)
    return manifest, progress.seconds_by_stage[Stage.STORE]


def _length(manifest: Manifest) -> int:
    return len(manifests.encoded(manifest))
