"""The ferry library in programs that use two GPUs: whose memory is where, which GPU reaches it, and how it goes and comes back."""

from __future__ import annotations

import itertools
import os
import subprocess
from contextlib import ExitStack, contextmanager

import numpy as np
import pytest

from jupyter_gpuckpt.engine.gpu.driver import digests
from jupyter_gpuckpt.engine.gpu.driver.gpu_staging import StagingFile, striped
from jupyter_gpuckpt.engine.gpu.ferry import ferry_orders
from jupyter_gpuckpt.engine.gpu.ferry.ferry_orders import Order, Range
from jupyter_gpuckpt.errors import GpuCkptError
from jupyter_gpuckpt.wire.stripes import STRIPE_BYTES
from tests.conftest import wait_for
from tests.engine.test_ferry_library import HERE, ferry_of, libraries, run, said, told

__all__ = ["libraries", "run"]

MB = 1 << 20
#: The driver's errors: no access to an address, and two of peer access.
NO_ACCESS, ALREADY, NOT_ENABLED = "700", "704", "705"
#: What every program begins with, beside `BEGIN`: contexts are numbers, and `reach` lets a GPU change every byte, from its context.
MORE = """
make_current = function("cuCtxSetCurrent", ctypes.c_void_p)
enable = function("cuCtxEnablePeerAccess", ctypes.c_void_p, ctypes.c_uint)
disable = function("cuCtxDisablePeerAccess", ctypes.c_void_p)
reset = function("cuDevicePrimaryCtxReset_v2", ctypes.c_int)
def on(context, call, *arguments):
    assert make_current(context) == 0
    try:
        return call(*arguments)
    finally:
        make_current(1)
def reach(address, size, value=1):
    return launch(1, 1, 2, 3, 4, 5, 6, 7, 8, (number * 3)(address, size, value), 9)
def bytes_at(address, size):
    return add(address, size, 0)
reached = driver.driver_reached  # how many parts of a GPU (the second) another one (the first) reaches
"""


@pytest.fixture
def begin(run, monkeypatch):
    monkeypatch.setenv("DRIVER_GPUS", "2")
    return lambda code, **options: run(MORE + code, **options)


def test_memory_is_on_the_gpu_of_its_context_and_no_other_reaches_it(begin):
    process = begin("""
one, two, small = allocate(5 * MB), on(2, allocate, 3 * MB), on(2, allocate, 1000)
print(count("handles"), count("plain"), reached(0, 0), reached(1, 1), reached(0, 1), reached(1, 0))
print(reach(one, 5 * MB), on(2, reach, one, 5 * MB), on(2, reach, two, 3 * MB), reach(two, 3 * MB))
""")
    assert said(process) == ["2", "1", "1", "1", "0", "0"]
    assert said(process) == ["0", NO_ACCESS, "0", NO_ACCESS]


def test_peer_access_reaches_memory_from_before_and_after_it_until_it_is_switched_off(begin):
    process = begin("""
before, plain = on(2, allocate, 3 * MB), on(2, allocate, 1000)
print(enable(2, 0), enable(2, 0), reach(before, 3 * MB), reach(plain, 1000))
after, own = on(2, allocate, 2500 * MB), allocate(2 * MB)
print(reach(after + 2490 * MB, 10 * MB), on(2, reach, own, 2 * MB), reached(0, 1), reached(1, 0))
print(on(2, enable, 1, 0), on(2, reach, own, 2 * MB))
print(disable(2), disable(2), reach(before, 3 * MB), reach(plain, 1000), reached(0, 1), on(2, reach, own, 2 * MB))
print(enable(7, 0), enable(2, 1), enable(1, 0), disable(1), reached(0, 1))
""")
    assert said(process) == ["0", ALREADY, "0", "0"]
    assert said(process) == ["0", NO_ACCESS, "4", "0"]
    assert said(process) == ["0", "0"]
    assert said(process) == ["0", NOT_ENABLED, NO_ACCESS, NO_ACCESS, "0", "0"]
    assert said(process) == ["1", "1", "101", NOT_ENABLED, "0"]


def test_peer_access_of_two_contexts_of_a_gpu_ends_with_the_last(begin):
    process = begin("""
memory = on(2, allocate, 3 * MB)
print(enable(2, 0), on(5, enable, 2, 0), disable(2), reached(0, 1), on(5, disable, 2), reached(0, 1))
print(on(5, enable, 2, 0), reached(0, 1), function("cuCtxDestroy", ctypes.c_void_p)(5), reached(0, 1), count("handles"))
""")
    assert said(process) == ["0", "0", "0", "1", "0", "0"]
    assert said(process) == ["0", "1", "0", "0", "1"]


def test_peer_access_for_which_something_is_missing_is_refused_and_changes_nothing(begin):
    process = begin("""
memory = [on(2, allocate, 3 * MB) for _ in range(3)]
for after in (1, 2, 3):
    driver.driver_refuse_access(after)
    print(enable(2, 0), reached(0, 1), disable(2))
print(enable(2, 0), reached(0, 1))
driver.driver_refuse_access(1)
print(on(2, allocate, 3 * MB), count("handles"), count("mapped"), count("reserved"))
""")
    for _ in range(3):
        assert said(process) == ["2", "0", NOT_ENABLED]
    assert said(process) == ["0", "3"]
    assert said(process) == ["-2", "3", "3", "3"]


#: Copies and fills as programs make them, with a buffer of the CPU.
COPIES = """
words = ctypes.c_size_t
copy = function("cuMemcpy", number, number, words)
copy_later = function("cuMemcpyAsync", number, number, words, ctypes.c_void_p)
copy_in = function("cuMemcpyHtoD_v2", number, ctypes.c_void_p, words)
copy_out = function("cuMemcpyDtoH_v2", ctypes.c_void_p, number, words)
fill = function("cuMemsetD8_v2", number, ctypes.c_ubyte, words)
copy_rows = function("cuMemcpy2D_v2", ctypes.c_void_p)
by_contexts = driver.driver_copied_by_contexts
one, two, small = allocate(4 * MB), on(2, allocate, 4 * MB), on(2, allocate, 1000)
buffer = ctypes.create_string_buffer(4 * MB)
"""


def test_copies_between_gpus_name_the_contexts_so_that_they_need_no_access(begin):
    process = begin(
        COPIES
        + """
add(one, 4 * MB, 5)
print(copy(two, one, 4 * MB), on(2, bytes_at, two, 4 * MB) == 5 | 5 << 8, by_contexts(), reached(0, 1))
on(2, add, two, 4 * MB, 1)
print(on(2, copy_later, one, two, 4 * MB, None), bytes_at(one, 4 * MB) == 6 | 6 << 8, by_contexts(), reached(1, 0))
print(copy_later(one + MB, two + MB, MB, 0x101), copy(small, one, 1000), by_contexts())
print(copy(one, one + MB, MB), copy_later(two, two + MB, MB, None) and on(2, copy_later, two, two + MB, MB, None), by_contexts())
print(reached(0, 1), reached(1, 0), copy_later(one, two, MB, 8))
"""
    )
    assert said(process) == ["0", "True", "1", "0"]
    assert said(process) == ["0", "True", "2", "0"]
    assert said(process) == ["0", "0", "4"]
    assert said(process) == ["0", "0", "4"]
    assert said(process) == ["1", "0", "400"]


#: Memory of the pool of the second GPU, where there is no other memory.
POOL = """
words = ctypes.c_size_t
copy = function("cuMemcpy", number, number, words)
_allocate_later = function("cuMemAllocAsync", pointer, words, ctypes.c_void_p)
def allocate_later(size):
    address = number()
    assert not _allocate_later(ctypes.byref(address), size, None)
    return address.value
by_contexts = driver.driver_copied_by_contexts
one, two, other = allocate(4 * MB), on(2, allocate_later, 4 * MB), allocate_later(4 * MB)
"""


def test_copies_between_the_ferry_and_the_pool_of_another_gpu_name_the_contexts(begin):
    process = begin(
        POOL
        + """
add(one, 4 * MB, 5)
print(on(2, copy, two, one, 4 * MB), on(2, bytes_at, two, 4 * MB) == 5 | 5 << 8, by_contexts(), driver.driver_retained())
on(2, add, two, 4 * MB, 1)
print(on(2, copy, one, two, 4 * MB), bytes_at(one, 4 * MB) == 6 | 6 << 8, by_contexts(), driver.driver_retained())
# Within one GPU, and between two pools, they are as the driver makes them.
print(copy(other, one, MB), copy(two, other, MB), by_contexts(), reached(1, 0))
"""
    )
    assert said(process) == ["0", "True", "1", "0"]
    assert said(process) == ["0", "True", "2", "0"]
    assert said(process) == ["0", "1", "2", "0"]


def test_a_copy_from_a_pool_whose_gpu_has_no_primary_context_is_as_the_driver_makes_it(begin):
    process = begin(
        'os.environ["DRIVER_INACTIVE"] = "1"\n'
        + POOL
        + """
os.environ["DRIVER_INACTIVE"] = "1"
print(copy(one, two, MB), on(2, copy, one, two, MB), by_contexts(), driver.driver_retained(), reached(1, 0))
"""
    )
    assert said(process) == ["1", "0", "0", "0", "1"]


def test_other_copies_and_fills_of_memory_on_the_other_gpu_give_access_to_it(begin):
    process = begin(
        COPIES
        + """
print(fill(two, 9, 4 * MB), on(2, bytes_at, two, 4 * MB) == 9 | 9 << 8, reached(0, 1), reached(1, 0))
print(copy_out(buffer, two, 4 * MB), buffer.raw == bytes([9]) * 4 * MB)
print(on(2, copy_in, one, buffer, 4 * MB), bytes_at(one, 4 * MB) == 9 | 9 << 8)
more = allocate(2 * MB)
print(on(2, reach, one, 4 * MB), reached(1, 0) - 1, on(2, reach, more, 2 * MB), enable(2, 0), disable(2), reached(0, 1))
print(on(2, free, one), free(two), count("handles"))
"""
    )
    assert said(process) == ["0", "True", "1", "0"]
    assert said(process) == ["0", "True"]
    assert said(process) == ["0", "True"]
    # Switching peer access off does not take it away: later copies need it.
    assert said(process) == ["0", "1", "0", "0", "0", "1"]
    assert said(process) == ["0", "0", "1"]


def test_copies_without_access_that_cannot_be_given_fail_as_they_did(begin):
    process = begin(
        COPIES
        + """
driver.driver_refuse_access(1)
print(fill(two, 9, 4 * MB), reached(0, 1), fill(two, 9, 4 * MB), reached(0, 1))
"""
    )
    assert said(process) == ["1", "0", "0", "1"]


def test_rows_are_copied_when_the_work_of_both_gpus_is_done(begin):
    process = begin(
        COPIES
        + """
add(one, 4 * MB, 5)
class Rows(ctypes.Structure):
    _fields_ = [
        ("from_x", words), ("from_y", words), ("from_type", ctypes.c_int), ("from_host", number), ("start", number),
        ("from_array", number), ("from_pitch", words), ("x", words), ("y", words), ("type", ctypes.c_int), ("host", number),
        ("to", number), ("array", number), ("pitch", words), ("width", words), ("height", words),
    ]
rows = Rows(from_type=2, start=one, from_pitch=2 << 10, type=2, to=two, pitch=1 << 10, width=1 << 10, height=1 << 10)
print(copy_rows(ctypes.byref(rows)), on(2, bytes_at, two, MB) == 5 | 5 << 8, [driver.driver_synchronized(n) > 1 for n in (1, 2)])
# A copy within one GPU waits for no other, where work may wait for what this thread does next.
before = driver.driver_synchronized(1), driver.driver_synchronized(2)
rows = Rows(from_type=2, start=one, from_pitch=1 << 10, type=2, to=one + 2 * MB, pitch=1 << 10, width=1 << 10, height=1 << 10)
print(copy_rows(ctypes.byref(rows)), (driver.driver_synchronized(1), driver.driver_synchronized(2)) == before)
"""
    )
    assert said(process) == ["0", "True", "[True,", "True]"]
    assert said(process) == ["0", "True"]


def test_memory_is_freed_from_the_other_gpu_when_the_work_on_its_own_is_done(begin):
    process = begin("""
memory = on(2, allocate, 3 * MB)
print(driver.driver_synchronized(1), driver.driver_synchronized(2))
print(free(memory), driver.driver_synchronized(1), driver.driver_synchronized(2), count("handles"), count("reserved"))
""")
    assert said(process) == ["0", "0"]
    assert said(process) == ["0", "0", "1", "0", "0"]


def test_a_reset_of_one_gpu_leaves_the_others_memory(begin):
    process = begin("""
one, two = allocate(5 * MB), on(2, allocate, 3 * MB)
print(enable(2, 0), on(2, enable, 1, 0))
print(reset(1), count("handles"), reached(0, 0), reach(one, 5 * MB))
two = on(2, allocate, 3 * MB)
print(reach(two, 3 * MB), enable(2, 0), reach(two, 3 * MB))
""")
    assert said(process) == ["0", "0"]
    assert said(process) == ["0", "1", "1", "0"]
    assert said(process) == [NO_ACCESS, "0", "0"]


def test_one_gpu_is_full_and_the_other_is_not(begin, tmp_path, monkeypatch):
    (tmp_path / "refuses").write_text("1 1 1")
    monkeypatch.setenv("DRIVER_REFUSES", str(tmp_path / "refuses"))
    process = begin("""
print(on(2, allocate, 2500 * MB), count("handles"), allocate(2500 * MB) > 0, count("handles"), count("reserved"))
""")
    assert said(process) == ["-2", "0", "True", "3", "1"]


def test_memory_that_nccl_takes_can_be_shared_by_handles(begin, libraries):
    folder = libraries / "nccl"
    folder.mkdir()
    built = folder / "libnccl.so.2"
    subprocess.run(
        ["gcc", "-O2", "-Wall", "-Werror", "-shared", "-fPIC", "-o", built, HERE / "nccl.c"],
        check=True,
    )
    process = begin(f"""
share = function("cuIpcGetMemHandle", ctypes.c_void_p, number)
nccl, address, handle = ctypes.CDLL({str(built)!r}), number(), ctypes.create_string_buffer(64)
print(nccl.nccl_allocate(ctypes.byref(address), number(5 * MB)), count("handles"), count("plain"))
print(share(handle, address), share(handle, allocate(5 * MB)), free(address.value), count("plain"))
""")
    assert said(process) == ["0", "0", "1"]
    assert said(process) == ["0", "0", "0", "0"]


#: Peer access between contexts, also of one that is not primary; the last is switched on without the library's notice.
PEERS = """
memory, small = allocate(5 * MB), on(2, allocate, 1000)
print(enable(2, 0), on(5, enable, 2, 0), reach(small, 1000), flush=True)
driver.driver_enable(2, 1)
for line in sys.stdin:
    print(driver.driver_peers(), flush=True)
"""


def test_peer_access_of_the_driver_is_off_for_a_save_and_on_again_after_it(begin, short_dir):
    process = begin(PEERS)
    assert said(process) == ["0", "0", "0"]
    ferry = ferry_of(process, short_dir)
    wait_for(lambda: ferry.is_there)
    for _ in range(3):
        assert peers(process) == "3"
        ferry.close_gate(30)
        ferry.switch_peers_off()
        assert peers(process) == "0"
        ferry.switch_peers_off()
        ferry.open_gate()


def peers(process):
    """Return between how many pairs of contexts the driver has peer access."""
    told(process)
    return said(process)[0]


def test_peer_access_that_cannot_be_switched_off_stays_on_and_the_save_fails(
    begin, short_dir, monkeypatch
):
    monkeypatch.setenv("DRIVER_KEEPS_PEER", "2")
    process = begin(PEERS)
    said(process)
    ferry = ferry_of(process, short_dir)
    wait_for(lambda: ferry.is_there)
    ferry.close_gate(30)
    with pytest.raises(GpuCkptError) as caught:
        ferry.switch_peers_off()
    assert "PEERS: CUresult 999" in caught.value.details
    assert peers(process) == "3"
    ferry.open_gate()
    assert peers(process) == "3"


def test_a_process_with_little_memory_on_several_gpus_can_be_asked(begin, short_dir):
    process = begin("""
small = allocate(1000), on(2, allocate, 1000)
print("ready", flush=True)
sys.stdin.readline()
""")
    said(process)
    ferry = ferry_of(process, short_dir)
    wait_for(lambda: ferry.is_there)
    assert ferry.sharing == (0, 0)


@pytest.mark.parametrize(
    ("setting", "gpus", "is_the_drivers"), [("0", "2", True), ("1", "2", False), ("0", "1", False)]
)
def test_where_nccl_is_told_to_share_by_handles_all_memory_is_the_drivers(
    begin, monkeypatch, setting, gpus, is_the_drivers
):
    monkeypatch.setenv("DRIVER_GPUS", gpus)
    monkeypatch.setenv("NCCL_CUMEM_ENABLE", setting)
    process = begin('memory = allocate(5 * MB)\nprint(count("plain"), count("handles"))')
    assert said(process) == (["1", "0"] if is_the_drivers else ["0", "1"])


#: Parts of both GPUs in turn, whose bytes are numbers that belong to their places; then expressions are evaluated.
HOLDS = """
sizes = [4, 6, 2, 12, 8, 4, 2, 10]
memory = [on(1 + at % 2, allocate, size * MB) for at, size in enumerate(sizes)]
for at, size in enumerate(sizes):
    on(1 + at % 2, add, memory[at], size * MB, at + 1)
def change():  # every byte is one more; all of a part are the same
    found = [on(1 + at % 2, add, memory[at], size * MB, 0) for at, size in enumerate(sizes)]
    for at, size in enumerate(sizes):
        on(1 + at % 2, add, memory[at], size * MB, 1)
    return [low for low, high in (divmod(one, 256)[::-1] for one in found) if low == high]
for line in sys.stdin:
    print(eval(line), flush=True)
"""
PARTS = 8


class Held:
    """A program with memory on both GPUs."""

    def __init__(self, process, ferry):
        self.process, self.ferry, self.turns = process, ferry, 0

    def says(self, expression):
        told(self.process, expression)
        return self.process.stdout.readline().strip()

    def check(self):
        """Compare all of its memory, and let it change."""
        found = [int(one) for one in self.says("change()").strip("[]").split(",")]
        assert found == [at + 1 + self.turns for at in range(8)]
        self.turns += 1

    @contextmanager
    def behind_the_gate(self):
        """Close the gate for the time of the block, and yield the parts. The library serves one connection at a time."""
        self.ferry.close_gate(30)
        yield self.ferry.allocations()
        self.ferry.open_gate()

    def order(self, name, *arguments, **options):
        """Give an order by a connection of its own."""
        with self.ferry._connected() as library:
            return getattr(library, name)(*arguments, **options)


@pytest.fixture
def held(begin, short_dir):
    process = begin(HOLDS)
    ferry = ferry_of(process, short_dir)
    wait_for(lambda: ferry.is_there, 60)
    found = Held(process, ferry)
    found.check()
    return found


def test_the_process_tells_which_gpus_it_sees_and_where_its_memory_is(held):
    assert held.ferry.devices() == {
        number: f"GPU-00000000-0000-0000-0000-00000000000{number + 1}" for number in (0, 1)
    }
    with held.behind_the_gate() as parts:
        assert [one.device for one in parts] == [0, 1] * 4


def refused(held, call, times):
    """Let `call` fail at the first places where memory is created or gets its access; yield which parts were handed over before each."""
    for kind, after in itertools.product(("create", "access"), range(1, times + 1)):
        held.says(f"driver.driver_refuse_{kind}({after})")
        before = [one.handed for one in held.ferry.allocations()]
        with pytest.raises(GpuCkptError):
            call()
        yield before
    held.says("driver.driver_refuse_access(0)")


def test_memory_of_two_gpus_is_handed_over_and_given_back(held):
    for peers in (False, True):
        if peers:
            assert held.says("(enable(2, 0), on(2, enable, 1, 0))") == "(0, 0)"
        with held.behind_the_gate(), ExitStack() as stack:
            memory = held.order("descriptors", 0)
            stack.callback(ferry_orders.close, memory)
            held.ferry.free()
            assert held.says("[count(what) for what in ('mapped', 'handles')]") == "[0, 0]"

            def give_back(memory=memory):
                """Continue where the last call has stopped."""
                first = next(n for n, one in enumerate(held.ferry.allocations()) if one.handed)
                held.order("give_back", first, memory[first:])

            for before in refused(held, give_back, 1 if peers else 2):
                after = [one.handed for one in held.ferry.allocations()]
                assert sum(after) <= sum(before)
                assert held.says("count('handles')") == str(PARTS - sum(after))
            give_back()
        assert held.says("[count(what) for what in ('mapped', 'handles', 'plain')]") == (
            f"[{PARTS}, {PARTS}, 0]"
        )
        assert held.says("(reached(0, 1), reached(1, 0))") == ("(4, 4)" if peers else "(0, 0)")
        held.check()


@pytest.mark.parametrize("files", [1, 3])
def test_memory_of_two_gpus_is_copied_to_files_and_back(held, files):
    with held.behind_the_gate() as parts:
        file = StagingFile(held.ferry.file_path, sum(one.bytes for one in parts), files)
        with striped(held.ferry._tree, held.process.pid, file) as descriptors:
            held.ferry.copy_out(
                descriptors, [Range(n, 0, one.bytes) for n, one in enumerate(parts)]
            )
            held.ferry.free()

            def fill():
                held.order("order", Order.FILL, 0, len(parts), descriptors=descriptors)

            for before in refused(held, fill, 3):
                assert all(before)
                assert held.says("[count(what) for what in ('mapped', 'handles')]") == "[0, 0]"
            fill()
    assert held.says("count('plain')") == "0"
    held.check()


def test_ranges_of_two_gpus_are_read_before_and_after_the_hand_over(held):
    """A unit of the copy begins in memory of one GPU and ends in that of the other."""
    ranges = [
        *(Range(0, 1 << 20, 2 << 20), Range(1, 0, 6 << 20)),
        *(Range(3, 0, 7 << 16), Range(7, 5, 9 << 20)),
    ]
    length = sum(one.bytes for one in ranges)
    expected = b"".join(bytes([one.part + 1 + held.turns]) * one.bytes for one in ranges)
    with held.behind_the_gate() as parts, ExitStack() as stack:
        memory = held.order("descriptors", 0)
        stack.callback(ferry_orders.close, memory)
        for is_handed in (False, True):
            more = (parts, memory) if is_handed else ()
            kind = Order.COPY_HANDED_OVER if is_handed else Order.COPY_OUT
            held.ferry.remove_file()
            file = StagingFile(held.ferry.file_path, length, 2)
            with striped(held.ferry._tree, held.process.pid, file) as descriptors:
                held.order("copy", kind, descriptors, 0, ranges, *more)
                found = [os.pread(one, os.fstat(one).st_size, 0) for one in descriptors]
            ends = [
                found[at % 2][at // 2 * STRIPE_BYTES :][:STRIPE_BYTES]
                for at in range(-(-length // STRIPE_BYTES))
            ]
            assert b"".join(ends) == expected
            if not is_handed:
                held.ferry.free()
        held.order("give_back", 0, memory)
    held.check()


def test_digests_of_memory_of_two_gpus_are_in_the_order_of_its_parts(held):
    key = digests.key_of(bytes(32))
    with held.behind_the_gate() as parts:
        found = held.ferry.digests(parts, key, handed_over=False)
    at = 0
    for number, one in enumerate(parts):
        piece = bytes([number + 1 + held.turns]) * digests.PIECE
        for place in (at, at + one.bytes // digests.PIECE - 1):
            assert np.array_equal(found[place], digests.digest(piece, key))
        at += one.bytes // digests.PIECE
    assert at == len(found)
    held.check()


def test_room_is_held_on_each_gpu(held):
    with held.behind_the_gate():
        for device in (0, 1):
            [descriptor] = held.order("reserved", device, 3 << 20)
            # The driver's files tell by their rights on which GPU they are.
            assert os.fstat(descriptor).st_mode & 3 == device
            assert os.fstat(descriptor).st_size == 4 << 20
            os.close(descriptor)
        with pytest.raises(GpuCkptError):
            held.order("reserved", 64, 3 << 20)
    held.check()
