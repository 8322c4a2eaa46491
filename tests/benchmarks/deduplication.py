"""A second save of an unchanged kernel, and a third after a tenth of its memory changed and something new came."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator

from jupyter_gpuckpt.store.local import LocalStore

from .engine_kernel import EngineKernel, engine_kernel, holding, scratch
from .measured import Row, ratios
from .room import GB, scaled

ROUNDS = 3
CHANGED, FRESH = 0.1, 0.02
BUDGET_UNCHANGED_PERCENT = 1.0
BUDGET_CHANGED_RATIO = 1.2
#: What changes is random, so that its bytes are its size; in one piece, as when a column is computed anew.
CHANGE = """
at = (at + size) % (len(memory) - size)
memory[at : at + size] = fill(size, ["random"], seed)[:size]
fresh = fill({fresh}, ["random"], seed + 1)
seed += 2
"""


def run() -> Iterator[Row]:
    """Three saves of one kernel, in a new store each time."""
    size = scaled(0.75, max_gb=4, memory=1.5, disk=2.5)
    changed, fresh = int(CHANGED * size * GB), int(FRESH * size * GB)
    setup = f"{holding(size, 'random')}\nat, size, seed = 0, {changed}, 100\n"
    seconds, stored = defaultdict[str, list[float]](list), defaultdict[str, list[float]](list)
    with scratch() as directory, engine_kernel(directory, setup) as kernel:
        for _ in range(ROUNDS):
            with scratch() as place, LocalStore(place / "store") as store:
                _save(kernel, store, seconds["first"], stored["first"])
                _save(kernel, store, seconds["second"], stored["second"])
                kernel.run(CHANGE.format(fresh=fresh))
                _save(kernel, store, seconds["third"], stored["third"])
    first = stored["first"]
    yield Row(f"first save of {size:g} GB", seconds["first"], **_drawn("first", "time"))
    yield Row("    new bytes", first, "MB", **_drawn("first", "new bytes"))
    yield Row("second save, nothing changed", seconds["second"], **_drawn("unchanged", "time"))
    yield Row("    new bytes", stored["second"], "MB", **_drawn("unchanged", "new bytes"))
    yield Row(
        "    of those of the first",
        [100 * share for share in ratios(stored["second"], first)],
        "%",
        BUDGET_UNCHANGED_PERCENT,
    )
    yield Row("    the first takes so many times that", _times(seconds, "second"), "x")
    third = f"third save, {CHANGED:.0%} changed, {FRESH:.0%} new"
    yield Row(third, seconds["third"], **_drawn("a tenth changed", "time"))
    yield Row("    new bytes", stored["third"], "MB", **_drawn("a tenth changed", "new bytes"))
    yield Row(
        "    of what changed",
        [new / ((changed + fresh) / 1e6) for new in stored["third"]],
        "x",
        BUDGET_CHANGED_RATIO,
    )
    yield Row("    the first takes so many times that", _times(seconds, "third"), "x")


def _save(
    kernel: EngineKernel, store: LocalStore, seconds: list[float], megabytes: list[float]
) -> None:
    began = time.monotonic()
    manifest = kernel.save(store)
    seconds.append(time.monotonic() - began)
    megabytes.append(manifest.info.sizes.new_bytes / 1e6)


def _times(seconds: dict[str, list[float]], name: str) -> list[float]:
    return ratios(seconds["first"], seconds[name])


def _drawn(x: str, chart: str) -> dict[str, str]:
    return {"chart": chart, "series": "save", "x": x}
