"""Memory of the ferry that programs share with other processes by CUDA IPC."""

from __future__ import annotations

import resource
from types import SimpleNamespace

import pytest

from jupyter_gpuckpt.engine.gpu import gpu_refusals
from jupyter_gpuckpt.engine.gpu.ferry.ferry_orders import BATCH, Order, close
from jupyter_gpuckpt.errors import KernelNotCheckpointable
from tests.conftest import wait_for
from tests.engine.test_ferry_library import ferry_of, libraries, run, said, told

__all__ = ["libraries", "run"]
pytestmark = pytest.mark.timeout(180)

#: The driver's errors.
INVALID_VALUE, INVALID_CONTEXT, SYSTEM_FAILED, INVALID_HANDLE = "1", "201", "304", "400"
#: What every program begins with, beside `BEGIN`. A handle is text between programs.
SHARING = """
class Handle(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_char * 64)]
_get = function("cuIpcGetMemHandle", ctypes.c_void_p, number)
_open = function("cuIpcOpenMemHandle", pointer, Handle, ctypes.c_uint)
close = function("cuIpcCloseMemHandle", number)
def get(address):
    handle = Handle()
    assert _get(ctypes.byref(handle), address) == 0
    return ctypes.string_at(ctypes.byref(handle), 64).hex()
def open_(text, flags=1):
    address = number()
    error = _open(ctypes.byref(address), Handle.from_buffer_copy(bytes.fromhex(text)), flags)
    return -error if error else address.value
def attribute(which, address, kind=number):
    value = kind(77)
    assert function("cuPointerGetAttribute", ctypes.c_void_p, ctypes.c_int, number)(ctypes.byref(value), which, address) == 0
    return value.value
def attributes(whiches, address):
    values = [number(0) for _ in whiches]
    pointers = (ctypes.c_void_p * len(values))(*[ctypes.addressof(value) for value in values])
    get = function("cuPointerGetAttributes", ctypes.c_uint, ctypes.c_void_p, ctypes.c_void_p, number)
    assert get(len(values), (ctypes.c_int * len(values))(*whiches), pointers, address) == 0
    return [value.value for value in values]
def serve(**known):
    print("ready", flush=True)
    for line in sys.stdin:
        print(eval(line, {**globals(), **known}), flush=True)
"""
#: Shares 5 MB of which every byte is 7.
EXPORTER = """
memory = allocate(5 * MB)
add(memory, 5 * MB, 7)
print(get(memory), flush=True)
serve()
"""
IMPORTER = "serve()"


class Program:
    """A child process that evaluates the expressions that a test sends it."""

    def __init__(self, process, short_dir):
        self.process = process
        self.ferry = ferry_of(process, short_dir)

    def ask(self, expression):
        told(self.process, expression)
        return self.process.stdout.readline().strip()

    def end(self):
        self.process.kill()
        self.process.wait()

    def handed_over(self):
        """Take the memory of a process whose gate is closed; return the descriptors."""
        with self.ferry._connected() as library:
            descriptors = library.descriptors(0)
            library.order(Order.UNMAP)
        return descriptors


@pytest.fixture
def begin(run, short_dir):
    def started(code):
        process = run(SHARING + code)
        handle = said(process)[0] if code == EXPORTER else ""
        assert said(process) == ["ready"]
        return Program(process, short_dir), handle

    return started


@pytest.fixture
def exporter(begin):
    return begin(EXPORTER)


@pytest.fixture
def importer(begin):
    return begin(IMPORTER)[0]


def test_memory_that_is_shared_is_one_memory(exporter, importer):
    program, handle = exporter
    address = importer.ask(f"open_({handle!r})")
    assert int(address) > 0
    assert importer.ask(f"add({address}, 5 * MB, 0) == 7 | 7 << 8") == "True"
    importer.ask(f"add({address}, 5 * MB, 3)")
    assert program.ask("add(memory, 5 * MB, 0) == 10 | 10 << 8") == "True"


def test_the_older_name_of_the_function_opens_it_too(exporter, importer):
    _, handle = exporter
    arguments = f"ctypes.byref(number()), Handle.from_buffer_copy(bytes.fromhex({handle!r})), 1"
    assert importer.ask(f"driver.cuIpcOpenMemHandle({arguments})") == "0"
    assert importer.ferry.sharing.opened == 1


def test_it_has_one_address_in_a_process_and_a_count(exporter, importer):
    _, handle = exporter
    first, second = (importer.ask(f"open_({handle!r})") for _ in range(2))
    assert first == second
    counts = "count('mapped'), count('reserved'), count('handles')"
    assert importer.ask(f"close({first}), {counts}") == "(0, 1, 1, 0)"
    assert importer.ferry.sharing.opened == 1
    assert importer.ask(f"close({first}), {counts}") == "(0, 0, 0, 0)"
    assert importer.ferry.sharing.opened == 0
    assert importer.ask(f"close({first})") == INVALID_VALUE
    assert int(importer.ask(f"open_({handle!r})")) > 0


def test_threads_that_open_it_at_the_same_time_share_one_mapping(exporter, begin):
    _, handle = exporter
    importer, _ = begin(
        "from concurrent.futures import ThreadPoolExecutor\nserve(pool=ThreadPoolExecutor(8))"
    )
    found = importer.ask(f"set(pool.map(open_, [{handle!r}] * 100)), count('mapped')")
    address = found.removeprefix("({").removesuffix("}, 1)")
    assert int(address) > 0
    closed = f"set(close({address}) for _ in range(100)), count('mapped')"
    assert importer.ask(closed) == "({0}, 0)"


def test_an_allocation_of_several_parts_is_shared_as_one(begin, importer):
    process, _ = begin("memory = allocate(2100 * MB)\nserve()")
    process.ask("add(memory + 2090 * MB, 10 * MB, 4)")
    handle = process.ask(
        "get(memory + 2099 * MB)"
    )  # the handle of an address inside is that of all
    address = importer.ask(f"open_({handle!r})")
    assert importer.ask(f"add({address} + 2090 * MB, 10 * MB, 0) == 4 | 4 << 8") == "True"
    assert importer.ask("count('mapped'), count('reserved')") == "(3, 1)"
    inside = f"{address} + 1500 * MB"
    assert importer.ask(f"attribute(11, {inside}) == {address}, attribute(12, {inside}) >> 20") == (
        "(True, 2100)"
    )
    assert process.ask("attribute(11, memory + 1500 * MB) == memory") == "True"
    assert process.ask("attributes([9, 10, 11, 12], memory) == [0, 1, memory, 2100 * MB]") == "True"


def test_attributes_tell_what_can_be_shared(begin):
    process, _ = begin("memory, small = allocate(5 * MB), allocate(1000)\nserve()")
    assert process.ask("attribute(10, memory, ctypes.c_uint), attribute(10, small)") == "(1, 1)"
    assert process.ask("attribute(9, memory, ctypes.c_int)") == "0"
    # To ask is not to share: later memory is the ferry's, too.
    assert process.ask("allocate(5 * MB) > 0, count('handles')") == "(True, 2)"


def test_what_is_allocated_after_the_first_export_is_the_drivers(exporter):
    program, handle = exporter
    assert program.ask(
        "add(allocate(5 * MB), 5 * MB, 1) >= 0, count('plain'), count('handles')"
    ) == ("(True, 1, 1)")
    assert program.ask("get(memory)") == handle


def test_handles_of_the_driver_are_the_drivers_and_counted(begin, short_dir):
    process, _ = begin("small = allocate(1000)\nserve()")
    for _ in range(2):
        assert process.ask("open_(get(small)) == small") == "True"
    tree = SimpleNamespace(inside=process.ferry._tree.inside)
    with pytest.raises(KernelNotCheckpointable, match=r"\(CUDA IPC\)"):
        gpu_refusals.refuse_opened(tree, process.process.pid)
    assert process.ask("close(small), close(small + 1)") == "(0, 1)"
    assert process.ferry.sharing == (1, 0)
    assert process.ask("close(small)") == "0"
    assert process.ask("driver.cuIpcOpenMemHandle(ctypes.byref(number()), Handle(), 1)") == "1"
    assert gpu_refusals.refuse_opened(tree, process.process.pid)
    assert process.ask("open_('00' * 64)") == f"-{INVALID_VALUE}"


def test_a_handle_whose_memory_is_gone_is_refused_as_by_the_driver(exporter, importer):
    program, handle = exporter
    assert program.ask(f"open_({handle!r})") == f"-{INVALID_CONTEXT}"
    assert importer.ask(f"open_({handle!r}, 0)") == f"-{INVALID_VALUE}"
    address = importer.ask(f"open_({handle!r})")
    assert program.ask("free(memory)") == "0"
    # The memory exists as long as somebody has it open.
    assert importer.ask(f"add({address}, 5 * MB, 0) == 7 | 7 << 8, close({address})") == "(True, 0)"
    assert importer.ask(f"open_({handle!r})") == f"-{INVALID_VALUE}"
    program.end()
    assert importer.ask(f"open_({handle!r})") == f"-{INVALID_HANDLE}"
    assert importer.ask("count('mapped'), count('reserved'), count('handles')") == "(0, 0, 0)"


def test_a_handle_of_an_earlier_process_is_not_another_ones(exporter, importer, begin, short_dir):
    program, handle = exporter
    other, _ = begin(EXPORTER)
    # As if the other process had the pid of the first.
    program.end()
    (short_dir / "ferry" / str(other.process.pid)).rename(
        short_dir / "ferry" / str(program.process.pid)
    )
    assert importer.ask(f"open_({handle!r})") == f"-{INVALID_VALUE}"


def test_an_importer_that_may_open_no_files_gets_an_error_and_keeps_nothing(exporter, importer):
    _, handle = exporter
    importer.ask("allocate(2 * MB)")
    wait_for(lambda: importer.ferry.is_there)
    pid = importer.process.pid
    limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    lowest = int(importer.ask("(lambda fd: (os.close(fd), fd)[1])(os.dup(0))"))
    for more in (0, 1):  # no socket, no room for the descriptor
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (lowest + more, limits[1]))
        assert importer.ask(f"open_({handle!r})") == f"-{SYSTEM_FAILED}"
    resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)
    assert importer.ask("count('mapped'), len(os.listdir('/proc/self/fd'))").startswith("(1, ")
    assert int(importer.ask(f"open_({handle!r})")) > 0


def test_a_handle_outlives_a_save(exporter, importer):
    program, handle = exporter
    program.ferry.close_gate(30)
    descriptors = program.handed_over()
    with program.ferry._connected() as library:
        library.give_back(0, descriptors)
    close(descriptors)
    program.ferry.open_gate()
    address = importer.ask(f"open_({handle!r})")
    assert importer.ask(f"add({address}, 5 * MB, 0) == 7 | 7 << 8") == "True"


def test_who_opens_memory_that_is_being_saved_waits_and_can_be_saved_meanwhile(exporter, importer):
    program, handle = exporter
    importer.ask("allocate(2 * MB)")
    program.ferry.close_gate(30)
    told(importer.process, f"open_({handle!r}) > 0")
    wait_for(lambda: importer.ferry.is_there)
    # It waits outside, so that its gate can be closed as often as wanted.
    for _ in range(20):
        importer.ferry.close_gate(30)
        importer.ferry.open_gate()
    descriptors = program.handed_over()
    with program.ferry._connected() as library:
        library.give_back(0, descriptors)
    close(descriptors)
    assert len(descriptors) <= BATCH
    program.ferry.open_gate()
    assert importer.process.stdout.readline() == "True\n"


def test_a_process_that_has_opened_memory_is_refused_by_name_before_anything_is_done(
    exporter, importer, short_dir
):
    program, handle = exporter
    tree = SimpleNamespace(inside=importer.ferry._tree.inside)
    pid = importer.process.pid
    assert not gpu_refusals.refuse_opened(tree, pid)  # it has no thread of the ferry yet
    address = importer.ask(f"open_({handle!r})")
    with pytest.raises(KernelNotCheckpointable, match="CUDA IPC") as caught:
        gpu_refusals.refuse_opened(tree, pid)
    assert f"from process {program.process.pid} " in caught.value.message
    assert gpu_refusals.refuse_opened(tree, program.process.pid)
    importer.ask(f"close({address})")
    assert gpu_refusals.refuse_opened(tree, pid)


def test_memory_of_another_gpu_is_reached_and_copied_by_contexts(begin, monkeypatch):
    monkeypatch.setenv("DRIVER_GPUS", "2")
    contexts = 'make_current = function("cuCtxSetCurrent", ctypes.c_void_p)\n'
    exporter, _ = begin(
        contexts + "make_current(2)\nmemory = allocate(5 * MB)\nadd(memory, 5 * MB, 7)\nserve()"
    )
    importer, _ = begin(
        contexts
        + "words = ctypes.c_size_t\ncopy = function('cuMemcpy', number, number, words)\n"
        + "own = allocate(5 * MB)\nadd(own, 5 * MB, 1)\nserve()"
    )
    handle = exporter.ask("get(memory)")
    address = importer.ask(f"open_({handle!r})")
    # Its own GPU and that of the context in which it is opened have access.
    assert importer.ask(f"add({address}, 5 * MB, 0) == 7 | 7 << 8") == "True"
    assert (
        importer.ask(f"copy(own, {address}, 5 * MB), driver.driver_copied_by_contexts()")
        == "(0, 1)"
    )
    assert importer.ask("add(own, 5 * MB, 0) == 7 | 7 << 8") == "True"
    assert importer.ask(f"make_current(2), add({address}, 5 * MB, 0) == 7 | 7 << 8") == "(0, True)"


def test_a_context_that_ends_closes_what_was_opened_in_it(exporter, importer):
    _, handle = exporter
    importer.ask(f"open_({handle!r})")
    destroy = "function('cuCtxDestroy', ctypes.c_void_p)(1)"
    assert importer.ask(f"{destroy}, count('mapped'), count('reserved')") == "(0, 0, 0)"
    assert importer.ferry.sharing.opened == 0


def test_a_forked_child_has_neither_exports_nor_imports(exporter, importer):
    program, handle = exporter
    assert program.ask("count('plain')") == "0"
    code = (
        "(lambda child: (os._exit(int(allocate(5 * MB) <= 0 or count('plain') != 1)) if not child else os.waitpid(child, 0)[1]))"
        "(os.fork())"
    )
    assert program.ask(code) == "0"
    importer.ask(f"open_({handle!r})")
    assert importer.ferry.sharing.opened == 1


#: Memory that the program creates, exports to itself and imports again, as another process would.
OWN = """
reserve = function("cuMemAddressReserve", pointer, number, number, number, ctypes.c_ulonglong)
create = function("cuMemCreate", pointer, number, ctypes.c_void_p, ctypes.c_ulonglong)
import_ = function("cuMemImportFromShareableHandle", pointer, ctypes.c_void_p, ctypes.c_int)
retain = function("cuMemRetainAllocationHandle", pointer, ctypes.c_void_p)
release = function("cuMemRelease", number)
map_ = function("cuMemMap", number, number, number, number, ctypes.c_ulonglong)
unmap = function("cuMemUnmap", number, number)
def got(call, *arguments):
    value = number()
    assert call(ctypes.byref(value), *arguments) == 0
    return value.value
properties = (ctypes.c_int * 8)(1, 1, 1, 0)
allocate(2 * MB)
own = got(create, 2 * MB, properties, 0)
at = got(reserve, 8 * MB, 0, 0, 0)
serve()
"""


def test_memory_that_the_program_imports_by_itself_is_counted_while_it_is_mapped(begin):
    process, _ = begin(OWN)
    wait_for(lambda: process.ferry.is_there)

    def opened(expected):
        assert process.ferry.sharing == (expected, 0)

    assert process.ask("map_(at, 2 * MB, 0, own, 0)") == "0"
    opened(0)  # its own
    # A handle of this driver is a descriptor.
    handle = process.ask("got(import_, own, 1)")
    opened(0)
    assert (
        process.ask(f"[map_(at + n * 2 * MB, 2 * MB, 0, {handle}, 0) for n in (1, 2)]") == "[0, 0]"
    )
    opened(2)
    assert process.ask(f"release({handle}), unmap(at + 2 * MB, 2 * MB)") == "(0, 0)"
    opened(1)
    # The value of the handle means other memory now, unless it is asked for again.
    assert process.ask("got(create, 2 * MB, properties, 0)") == handle
    assert process.ask(f"map_(at + 6 * MB, 2 * MB, 0, {handle}, 0)") == "0"
    opened(1)
    again = process.ask("got(retain, at + 4 * MB)")
    assert process.ask(f"map_(at + 2 * MB, 2 * MB, 0, {again}, 0)") == "0"
    opened(2)
    assert process.ask("unmap(at + 2 * MB, 2 * MB), unmap(at + 4 * MB, 2 * MB)") == "(0, 0)"
    opened(0)
