"""GPU memory by the ferry, and by the driver: how long a save stops a kernel, what a second one stores, park, unpark, suspend, resume."""

from __future__ import annotations

import os
import statistics
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from jupyter_gpuckpt.client import Client
from jupyter_gpuckpt.host import gpu
from jupyter_gpuckpt.wire import calls
from jupyter_gpuckpt.wire.protocol import Operation, Result

from . import written_again
from .environment import daemon, kernel
from .gpu_memory import CELL_SECONDS, FILL, require_right_answer, sizes
from .measured import Row, ratios
from .room import GB, touch_memory

#: What is saved again, parked and suspended; and what is only saved, to see that its size makes no difference. All of the latter is
#: alike, because the disk has no room for as much that is not.
SIZE_GB, LARGE_GB = 24.0, 60.0
ALIKE = FILL.replace("part.random_(-(1 << 62), 1 << 62)", "part.fill_(12345)")
SAVES, PARKS, SUSPENDS, TURNS = 3, 5, 3, 20
#: Numbers as in a neural network, of which zstd compresses the exponents only, and four random bits in each byte, which it stores in
#: half of the bytes. `FILL` is stored as it is.
FLOATS, HALF = (
    FILL.replace("part.random_(-(1 << 62), 1 << 62)", other)
    for other in (
        "part.view(torch.float32).normal_(std=0.02)",
        "part.random_(-(1 << 62), 1 << 62).bitwise_and_(0x0F0F0F0F0F0F0F0F)",
    )
)
#: How often a kernel without a snapshot is suspended.
FIRST_SUSPENDS = 2
#: Memory that nothing is done with, and how often the memory of one of two kernels fits beside it.
UNUSED = 'import torch; x = torch.empty(size // 8, device="cuda", dtype=torch.int64); total = int'
FITS_TIMES = 1.6
#: In seconds: what a save stops a kernel for, and how much longer for the larger size; a second save with nothing changed; a resume; a
#: turn of two kernels, and one in which their contexts stay on the GPU.
BUDGET_STILL, BUDGET_MORE_STILL, BUDGET_SECOND, BUDGET_RESUME = 0.9, 0.1, 1.5, 2.5
BUDGET_TURN, BUDGET_SHORT_TURN = 2.5, 1.5
#: In percent of the memory, in times of what was changed, and in GB/s without the context's time.
BUDGET_NEW, BUDGET_TENTH, BUDGET_PARK = 0.1, 1.2, 40.0
#: In times of writing the same packs alone, and in seconds.
BUDGET_FIRST_SUSPEND, BUDGET_RESUME_COMPRESSED = 1.15, 3.5
_VARIABLE = "JUPYTER_GPUCKPT_GPU_COPY"
#: Changes the first tenth of the memory.
TENTH = "x[: len(x) // 10] += 1; torch.cuda.synchronize(); expected = total()"


def run() -> Iterator[Row]:
    """First by the ferry, then by the driver, with kernels of their own."""
    [size] = sizes([SIZE_GB], memory=2.2, disk=1.6)
    touch_memory(2 * size)
    still = list[float]()
    for way in ("ferry", "driver"):
        with _way(way), daemon() as client:
            empty = _Kernel(client, 0.001)
            with empty:
                context = empty.parked(PARKS)
            with _Kernel(client, size) as found:
                yield from _measure(way, found, context)
                still.append(statistics.median(one.frozen_seconds for one in found.saves))
            if way == "ferry":
                yield from _large(client, still[0])
                yield from _turns(client, size)
        if way == "ferry":
            with _way(way):
                yield from first_suspends(size)


def first_suspends(size: float) -> Iterator[Row]:
    """Suspend kernels without a snapshot, each into a store of its own, write their packs alone, and resume them."""
    for kind, fill, rounds, budgets in (
        ("stored raw", FILL, FIRST_SUSPENDS, (BUDGET_FIRST_SUSPEND, BUDGET_RESUME)),
        ("float32, exponents by zstd", FLOATS, 1, (None, BUDGET_RESUME_COMPRESSED)),
        ("all bytes by zstd", HALF, 1, (None, BUDGET_RESUME_COMPRESSED)),
    ):
        suspends, alone, resumes = list[Result](), list[float](), list[tuple[float, Result]]()
        for _ in range(rounds):
            with daemon() as client, _Kernel(client, size, fill) as found:
                os.sync()  # nobody writes for somebody else
                suspends.append(found.suspend())
                packs = sorted(Path(os.environ["JUPYTER_GPUCKPT_DATA_DIR"]).rglob("*.pack"))
                alone.append(written_again.seconds(packs))
                resumes.append(found.resume())
                for _ in range(SUSPENDS - 1):
                    found.suspend()
                    resumes.append(found.resume())
        yield from _stages(f"ferry: first suspend of {size:g} GB, {kind}", suspends)
        share = [100 * one.sizes.new_bytes / (size * GB) for one in suspends]
        yield Row("    new bytes, of the memory's", share, "%")
        yield Row(
            f"    its packs written alone, {written_again.WRITERS} at a time and synced", alone
        )
        times = ratios([one.seconds for one in suspends], alone)
        yield Row("    times as long as that", times, "x", budgets[0])
        yield Row(
            f"ferry: resume of {size:g} GB, {kind}, to the first right answer",
            [seconds for seconds, _ in resumes],
            budget=budgets[1],
        )
        yield from _stages("    its operation", [result for _, result in resumes])


def _large(client: Client, smaller: float) -> Iterator[Row]:
    """Save more memory; only where the GPU has room for it twice the size should make no difference."""
    has_room = max(gpu.free_bytes().values()) > 2 * LARGE_GB * GB
    with _Kernel(client, LARGE_GB, ALIKE) as found:
        found.save(SAVES)
        require_right_answer(found.channel)
    frozen = [one.frozen_seconds for one in found.saves]
    yield Row(
        f"ferry: save of {LARGE_GB:g} GB: GPU and CPU stand still",
        frozen,
        budget=BUDGET_STILL if has_room else None,
    )
    more = statistics.median(frozen) - smaller
    budget = BUDGET_MORE_STILL if has_room else None
    yield Row("    longer than with the smaller size", [more], budget=budget)


@contextmanager
def _way(way: str) -> Iterator[None]:
    before = os.environ.get(_VARIABLE)
    os.environ[_VARIABLE] = "own" if way == "ferry" else "driver"
    try:
        yield
    finally:
        del os.environ[_VARIABLE]
        if before is not None:
            os.environ[_VARIABLE] = before


class _Kernel(ExitStack):
    """A kernel with so many GB on the GPU, and what was done with it."""

    def __init__(self, client: Client, size: float, fill: str = FILL) -> None:
        super().__init__()
        self.size, self._client, self.saves = size, client, list[Result]()
        setup = f"size = {int(size * GB)}\n{fill}\nexpected = total()"
        self.kernel_id, self.channel = self.enter_context(kernel(setup))

    def done(self, operation: Operation) -> Result:
        return self._client.wait(operation.operation_id)

    def save(self, times: int = 1) -> list[Result]:
        found = [self.done(self._client.send(calls.save(self.kernel_id))) for _ in range(times)]
        self.saves += found
        return found

    def suspend(self) -> Result:
        return self.done(self._client.send(calls.suspend(self.kernel_id)))

    def resume(self) -> tuple[float, Result]:
        """Resume it; return the seconds to the first right answer, and the result."""
        began = time.monotonic()
        result = self.done(self._client.send(calls.resume(self.kernel_id)))
        require_right_answer(self.channel)
        return time.monotonic() - began, result

    def park(self, *, keep_contexts: bool = False) -> Result:
        return self.done(self._client.send(calls.park(self.kernel_id, keep_contexts=keep_contexts)))

    def unpark(self) -> Result:
        return self.done(self._client.send(calls.resume(self.kernel_id)))

    def parked(self, times: int) -> tuple[list[float], list[float]]:
        """Park and unpark it; return the seconds of both."""
        parks, unparks = list[float](), list[float]()
        for _ in range(times):
            parks.append(self.park().seconds)
            unparks.append(self.unpark().seconds)
            require_right_answer(self.channel)
        return parks, unparks


def _measure(way: str, found: _Kernel, context: tuple[list[float], list[float]]) -> Iterator[Row]:
    size, ferry = found.size, way == "ferry"
    [first] = found.save()
    yield from _stages(f"{way}: first save of {size:g} GB", [first])
    again = found.save(SAVES if ferry else 1)
    yield from _stages(
        f"{way}: second save, nothing changed", again, budget=BUDGET_SECOND if ferry else None
    )
    share = [100 * one.sizes.new_bytes / (size * GB) for one in again]
    yield Row("    new bytes, of the memory's", share, "%", BUDGET_NEW if ferry else None)
    found.channel.execute_interactive(TENTH, timeout=CELL_SECONDS, output_hook=lambda message: None)
    tenth = found.save()
    yield from _stages(f"{way}: a tenth changed", tenth)
    ratio = [one.sizes.new_bytes / (size * GB / 10) for one in tenth]
    yield Row(
        "    new bytes, in times of those changed", ratio, "x", BUDGET_TENTH if ferry else None
    )
    still = [one.frozen_seconds for one in found.saves]
    yield Row(
        f"{way}: save of {size:g} GB: GPU and CPU stand still",
        still,
        budget=BUDGET_STILL if ferry else None,
    )
    for name, seconds, empty in zip(
        ("park", "unpark"), found.parked(PARKS if ferry else 1), context, strict=True
    ):
        yield Row(f"{way}: {name} of {size:g} GB", seconds)
        yield Row("    of a kernel without memory", empty)
        rates = [size * GB / 1e9 / max(1e-3, one - statistics.median(empty)) for one in seconds]
        yield Row("    without that", rates, "GB/s", BUDGET_PARK if ferry else None, at_least=True)
    suspends, resumes = list[Result](), list[tuple[float, Result]]()
    for _ in range(SUSPENDS if ferry else 1):
        suspends.append(found.suspend())
        resumes.append(found.resume())
    yield from _stages(f"{way}: suspend of {size:g} GB, nothing changed", suspends)
    yield Row(
        f"{way}: resume of {size:g} GB to the first right answer",
        [seconds for seconds, _ in resumes],
        budget=BUDGET_RESUME if ferry else None,
    )
    yield from _stages("    its operation", [result for _, result in resumes])


def _stages(name: str, found: list[Result], budget: float | None = None) -> Iterator[Row]:
    yield Row(name, [one.seconds for one in found], budget=budget)
    stages = defaultdict[str, list[float]](list)
    for one in found:
        for stage, seconds in one.seconds_by_stage.items():
            stages[stage].append(seconds)
    for stage, seconds in stages.items():
        yield Row(f"    {stage}", seconds)


def _turns(client: Client, size: float) -> Iterator[Row]:
    """Let two kernels that do not fit on the GPU together take turns: one is on the GPU while the other one is parked."""
    seconds = dict[bool, list[float]]({False: [], True: []})
    rest = max(gpu.free_bytes().values()) / GB - FITS_TIMES * size
    with _Kernel(client, rest, UNUSED), _Kernel(client, size) as one:
        one.park()
        with _Kernel(client, size) as other:
            here, away = other, one
            for keep_contexts, spent in seconds.items():
                for _ in range(TURNS):
                    began = time.monotonic()
                    here.park(keep_contexts=keep_contexts)
                    away.unpark()
                    spent.append(time.monotonic() - began)
                    here, away = away, here
                    require_right_answer(here.channel)
            here.park()
            away.unpark()
            require_right_answer(away.channel)
    name = f"ferry: a turn of two kernels of {size:g} GB each"
    yield Row(name, seconds[False], budget=BUDGET_TURN)
    yield Row("    whose contexts stay on the GPU", seconds[True], budget=BUDGET_SHORT_TURN)
