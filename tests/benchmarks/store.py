"""A store of a million chunks: opening, lists, its space, deletes and what they hold up, memory.

GPUCKPT_BENCH_CHUNKS names other sizes (10000000 takes 6 GB of disk and some minutes). Budgets are those of a million, and in
proportion from there on; a delete may not hold up anything for longer, however large the store is.
"""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from random import Random

import numpy as np

from jupyter_gpuckpt.store.local import LocalStore

from . import large_store
from .engine_kernel import scratch
from .measured import Row
from .room import GB, Skipped, folder

SIZES = [int(size) for size in os.environ.get("GPUCKPT_BENCH_CHUNKS", "1000000").split(",")]
MILLION = 10**6
#: What a million chunks take at most, in seconds and MB.
OPEN, LIST, SPACE, MEMORY = 1.0, 0.3, 2.0, 150.0
HELD_UP_MS = 50.0
#: For how long is looked at what waits without a delete.
IDLE_SECONDS = 0.5
_BYTES_PER_CHUNK = 600


def run() -> Iterator[Row]:
    """Measure each size in a store of its own, by processes of their own."""
    for size in SIZES:
        if shutil.disk_usage(folder()).free < size * _BYTES_PER_CHUNK + GB:
            raise Skipped(f"no room for {size:,} chunks")
        with scratch() as place:
            large_store.make(place / "store", size)
            yield from measure(place / "store", size)


def measure(root: Path, size: int) -> Iterator[Row]:
    """Yield the rows of an existing store, whose catalog may be missing."""
    scale = max(1.0, size / MILLION)
    with get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        first = pool.apply(_first, (root,))
        found = pool.apply(_again, (root,))
    label = f"{size:,} chunks: "
    yield Row(f"{label}opening without a catalog", [first["open"]])
    yield Row("    until all is known of its snapshots", [first["complete"]])
    yield Row("    memory", [first["memory"]], "MB")
    yield Row(f"{label}opening", [found["open"]], budget=OPEN * scale)
    yield Row("    first list", [found["list"]], budget=LIST * scale)
    yield Row("    list", [found["list again"]])
    yield Row("    first count of the space", [found["space"]], budget=SPACE * scale)
    yield Row("    the same after another save", [found["space again"]])
    for what in ("one", "many"):
        yield Row(f"    delete of {what}", [found[what]], facts=found[f"{what} facts"])
        for probe in ("look-up", "list", "publish"):
            held, else_held = found[f"{what} {probe}"], found[f"nothing {probe}"]
            facts = {"without a delete": f"{else_held:.0f} ms"}
            yield Row(f"        longest wait of a {probe}", [held], "ms", HELD_UP_MS, facts=facts)
    yield Row("    memory", [found["memory"]], "MB", MEMORY * scale)


def _first(root: Path) -> dict[str, float]:
    began = time.monotonic()
    with LocalStore(root) as store:
        opened = time.monotonic() - began
        _finish_opening(store)
        complete = time.monotonic() - began
    return {"open": opened, "complete": complete, "memory": _memory()}


def _finish_opening(store: LocalStore) -> None:
    """Wait until nothing goes on in the background."""
    store.sweep()


def _again(root: Path) -> dict[str, object]:
    found: dict[str, object] = {}
    ids = list(large_store.snapshot_ids(root))
    began = time.monotonic()
    with LocalStore(root) as store:
        found["open"] = time.monotonic() - began
        found["list"] = _timed(store.snapshots)
        found["list again"] = _timed(store.snapshots)
        found["space"] = _timed(store.space)
        some = store.manifest(ids[-1]).streams[0].chunks
        digests = [chunk.digest for chunk in some]
        _publish(store, digests, "another")
        found["space again"] = _timed(store.space)
        # Of the first notebook all but the last snapshot go, so that the pack with the libraries is written anew.
        gone = ids[: large_store.SNAPSHOTS_PER_NOTEBOOK - 1]
        for what, names in (("nothing", []), ("one", gone[:1]), ("many", gone[1:])):
            with _probes(store, digests) as waits:
                before = _disk(root)
                work = partial(store.delete, *names) if names else partial(time.sleep, IDLE_SECONDS)
                found[what] = _timed(work)
            found[f"{what} facts"] = {"freed": f"{(before - _disk(root)) / 1e6:.1f} MB"}
            for probe, longest in waits.items():
                found[f"{what} {probe}"] = longest * 1e3
        store.verify(ids[len(gone)])
    found["memory"] = _memory()
    return found


def _publish(store: LocalStore, digests: list[bytes], snapshot_id: str) -> None:
    columns = np.array([np.void(digest) for digest in digests])
    store.publish(large_store.manifest(snapshot_id, "n0.ipynb", columns))


@contextmanager
def _probes(store: LocalStore, digests: list[bytes]) -> Iterator[dict[str, float]]:
    """Yield the longest waits inside the block, in seconds: of look-ups, lists and publishes."""
    random, done = Random(1), threading.Event()
    waits: dict[str, float] = {}

    def publish() -> None:
        _publish(store, digests[:10], f"probe-{time.monotonic_ns()}")

    def again(what: str, ask: Callable[[], object]) -> None:
        while not done.is_set():
            waits[what] = max(waits.get(what, 0.0), _timed(ask))
            done.wait(0.01)

    with store.writer() as writer:
        probes: dict[str, Callable[[], object]] = {
            "look-up": lambda: writer.known(random.sample(digests, 100)),
            "list": store.snapshots,
            "publish": publish,
        }
        threads = [threading.Thread(target=again, args=probe) for probe in probes.items()]
        for thread in threads:
            thread.start()
        try:
            yield waits
        finally:
            done.set()
            for thread in threads:
                thread.join()


def _timed(work: Callable[[], object]) -> float:
    began = time.monotonic()
    work()
    return time.monotonic() - began


def _disk(root: Path) -> int:
    return sum(path.stat().st_size for path in (root / "packs").iterdir())


def _memory() -> float:
    """Return the largest memory of this process in MB.

    `ru_maxrss` of a new program begins with its parent's.
    """
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024 / 1e6
    raise RuntimeError("Linux does not tell the largest memory of a process")
