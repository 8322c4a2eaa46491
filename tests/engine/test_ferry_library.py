"""The ferry library in programs of its own: whose calls wait at the gate, what is allocated by it, and what stays as without it."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import textwrap
from pathlib import Path
from types import SimpleNamespace

import pytest

from jupyter_gpuckpt.engine.gpu.driver.gpu_staging import StagingFile, striped
from jupyter_gpuckpt.engine.gpu.ferry import ferry as ferry_module
from jupyter_gpuckpt.engine.gpu.ferry.ferry import Ferry
from jupyter_gpuckpt.engine.gpu.ferry.ferry_orders import Order, Range, close
from jupyter_gpuckpt.engine.tree import ferry_library
from jupyter_gpuckpt.errors import FreezeFailed
from tests.conftest import wait_for

#: A program that does not answer must not hold up the others.
pytestmark = pytest.mark.timeout(180)

HERE = Path(__file__).parent / "ferry"
#: What every program begins with: the driver's functions as programs get them, and `count`, what exists in the driver.
BEGIN = """
import ctypes, os, sys, threading
driver = ctypes.CDLL("libcuda.so.1")
count = lambda what: driver.driver_count(["reserved", "mapped", "handles", "plain", "inside"].index(what))
def function(name, *arguments):
    found, status = ctypes.c_void_p(), ctypes.c_int()
    assert not driver.cuGetProcAddress_v2(
        name.encode(), ctypes.byref(found), 12000, ctypes.c_ulonglong(0), ctypes.byref(status)
    )
    return ctypes.CFUNCTYPE(ctypes.c_int, *arguments)(found.value)
pointer, number = ctypes.POINTER(ctypes.c_uint64), ctypes.c_uint64
_allocate, free = function("cuMemAlloc", pointer, number), function("cuMemFree", number)
launch = function("cuLaunchKernel", ctypes.c_void_p, *[ctypes.c_uint] * 7, *[ctypes.c_void_p] * 3)
def allocate(size):
    address = number()
    error = _allocate(ctypes.byref(address), size)
    return address.value if not error else -error
def add(address, size, value):
    parameters = (number * 3)(address, size, value)
    assert launch(1, 1, 2, 3, 4, 5, 6, 7, 8, parameters, 9) == 0
    return parameters[2]
MB = 1 << 20
"""


@pytest.fixture(scope="module")
def libraries(tmp_path_factory) -> Path:
    """Return a folder with the driver, and a library that is linked with it."""
    folder = tmp_path_factory.mktemp("libraries")
    gcc = ["gcc", "-O2", "-Wall", "-Werror", "-shared", "-fPIC"]
    driver = folder / "libcuda.so.1"
    options = [f"-Wl,-Bsymbolic,-soname,{driver.name}", "-o", driver]
    subprocess.run([*gcc, *options, HERE / "driver.c"], check=True)
    subprocess.run([*gcc, "-o", folder / "direct.so", HERE / "direct.c", driver], check=True)
    return folder


@pytest.fixture
def run(libraries, short_dir):
    """Return a function that starts a program with the library, and one with the orders of the daemon for it."""
    (short_dir / "ferry").mkdir()
    started = []

    def begin(code, *, with_ferry=True, libraries=libraries):
        env = {
            **os.environ,
            "LD_LIBRARY_PATH": str(libraries),
            "DIRECT": str(libraries / "direct.so"),
        }
        if with_ferry:
            more = {"LD_PRELOAD": ferry_library.LIBRARY, "GPUCKPT_FERRY": short_dir / "ferry"}
            env |= {name: str(value) for name, value in more.items()}
        process = subprocess.Popen(
            [sys.executable, "-c", BEGIN + textwrap.dedent(code)],
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield begin
    for process in started:
        process.kill()
        process.communicate()


def ferry_of(process, short_dir):
    """Return the daemon's side, for a process that has no init: it lies in no tree."""
    tree = SimpleNamespace(inside=lambda path: short_dir / "ferry" / Path(path).name)
    ferry = Ferry(tree, process.pid)
    ferry._socket = short_dir / "ferry" / str(process.pid)
    return ferry


def said(process):
    return process.stdout.readline().split()


def told(process, line="go"):
    process.stdin.write(line + "\n")
    process.stdin.flush()


def test_large_memory_is_the_ferries_and_small_memory_is_the_drivers(run):
    process = run("""
        large, small = allocate(5 * MB), allocate(MB)
        print(count("handles"), count("plain"))
        add(large, 5 * MB, 7), add(small, MB, 8)
        print(add(large, 5 * MB, 0) == 7 | 7 << 8)
        huge = allocate(2560 * MB)  # in parts of at most 1 GB
        print(count("reserved"), count("handles"))
        base, size = number(), number()
        get = function("cuMemGetAddressRange_v2", pointer, pointer, number)
        assert get(ctypes.byref(base), ctypes.byref(size), huge + (2000 << 20)) == 0
        print(base.value == huge, size.value >> 20)
        print(free(huge), free(large), free(small), count("reserved"), count("handles"), count("plain"))
    """)
    assert said(process) == ["1", "1"]
    assert said(process) == ["True"]
    assert said(process) == ["2", "4"]
    assert said(process) == ["True", "2560"]
    assert said(process) == ["0", "0", "0", "0", "0", "0"]


def test_out_of_memory_stays_out_of_memory_and_leaves_nothing(run):
    process = run("""
        driver.driver_refuse_create(2)
        print(allocate(2560 * MB), count("reserved"), count("mapped"), count("handles"), count("plain"))
        print(allocate(5 * MB) > 0)
    """)
    assert said(process) == ["-2", "0", "0", "0", "0"]
    assert said(process) == ["True"]


def launched(process):
    """Return how many threads are inside the driver, and how many launches the program has counted."""
    told(process)
    inside, count = said(process)
    return int(inside), int(count)


def launched_outside(process):
    """Return how many launches the program has counted; no thread may be inside the driver."""
    inside, count = launched(process)
    assert inside == 0
    return count


@pytest.mark.parametrize("way", ["by address", "by name", "linked"])
def test_no_thread_is_inside_the_driver_while_the_gate_is_closed(run, short_dir, way):
    process = run(f"""
        import time
        way, direct = {way!r}, ctypes.CDLL(os.environ["DIRECT"])
        memory = allocate(2 * MB)
        launches = [0, 0, 0]
        def work(which):
            parameters = (number * 3)(memory, 2 * MB, 1)
            while True:
                if way == "by address":
                    launch(1, 1, 2, 3, 4, 5, 6, 7, 8, parameters, 9)
                elif way == "by name":
                    P, U = ctypes.c_void_p, ctypes.c_uint
                    words = [P(1), U(1), U(2), U(3), U(4), U(5), U(6), U(7), P(8), parameters, P(9)]
                    assert driver.cuLaunchKernel(*words) == 0
                else:
                    assert direct.direct_launch(parameters) == 0
                launches[which] += 1
        for which in range(3):
            threading.Thread(target=work, args=(which,), daemon=True).start()
        for line in sys.stdin:
            print(count("inside"), sum(launches), flush=True)
    """)
    ferry = ferry_of(process, short_dir)
    wait_for(lambda: ferry.is_there)
    for _ in range(20):
        ferry.close_gate(30)
        assert ferry.status().closed
        # Each thread may still have to count a launch that ended before the gate was closed.
        counts = [launched_outside(process) for _ in range(20)]
        assert counts[-1] <= counts[0] + 3
        before = counts[-1]
        ferry.open_gate()
        wait_for(lambda before=before: launched(process)[1] > before)


def test_a_gate_that_cannot_be_closed_in_time_is_open_again(run, short_dir):
    process = run("""
        memory = allocate(2 * MB)
        print("ready", flush=True)
        add(memory, 2 * MB, 1)
        sys.stdin.readline()
        driver.driver_hold(1)
        holder = threading.Thread(target=add, args=(memory, 2 * MB, 1))
        holder.start()
        while not count("inside"):
            pass
        print("inside", flush=True)
        sys.stdin.readline()
        driver.driver_hold(0)
        holder.join()
        print(add(memory, 2 * MB, 0) & 255, flush=True)
    """)
    said(process)
    ferry = ferry_of(process, short_dir)
    wait_for(lambda: ferry.is_there)
    told(process)
    assert said(process) == ["inside"]
    with pytest.raises(FreezeFailed) as caught:
        ferry.close_gate(0.05)
    assert "CLOSE" in caught.value.details
    assert not ferry.status().closed
    told(process)
    assert said(process) == ["2"]


def test_children_and_programs_that_it_starts_are_as_without_it(run):
    process = run("""
        memory = allocate(2 * MB)
        print("GPUCKPT_FERRY" in os.environ, sys.stdout.flush())
        if not os.fork():
            child = allocate(5 * MB)  # of this driver, which survives a fork
            print(count("handles"), count("plain"), flush=True)
            os._exit(0)
        os.wait()
        import subprocess
        print(subprocess.run(
            [sys.executable, "-c", "import os; print(os.environ.get('GPUCKPT_FERRY'))"],
            capture_output=True, text=True,
        ).stdout)
    """)
    assert said(process) == ["False", "None"]
    assert said(process) == ["1", "1"]
    assert said(process) == ["None"]


def test_a_child_that_is_forked_while_a_thread_allocates_waits_for_nobody(run):
    process = run("""
        memory = allocate(2 * MB)
        free(0)  # finds the function, which a child would find without the library
        driver.driver_hold(1)
        allocating = threading.Thread(target=allocate, args=(2 * MB,))
        allocating.start()
        while not count("inside"):
            pass
        child = os.fork()
        if not child:
            os._exit(free(0))
        print(os.waitpid(child, 0)[1], flush=True)
        driver.driver_hold(0)
        allocating.join()
        print(count("handles"))
    """)
    assert said(process) == ["0"]
    assert said(process) == ["2"]


def test_memory_that_the_driver_cannot_share_is_the_drivers(run, monkeypatch, short_dir):
    monkeypatch.setenv("DRIVER_CANNOT", "share")
    check_all_is_the_drivers(run, short_dir)


def test_with_a_driver_that_lacks_a_function_all_memory_is_the_drivers(
    run, libraries, tmp_path, monkeypatch, short_dir
):
    old = tmp_path / "libcuda.so.1"
    options = ["-O2", "-shared", "-fPIC", "-DOLD", f"-Wl,-Bsymbolic,-soname,{old.name}", "-o", old]
    subprocess.run(["gcc", *options, HERE / "driver.c"], check=True)
    check_all_is_the_drivers(run, short_dir, libraries=tmp_path)


def check_all_is_the_drivers(run, short_dir, **options):
    """Check a program: it works as without the ferry, whose thread never begins, so that nothing is asked of it."""
    process = run(
        """
        memory = allocate(5 * MB)
        print(add(memory, 5 * MB, 7) and add(memory, 5 * MB, 0) >> 8 != 255, flush=True)
        print(*map(count, ("handles", "mapped", "reserved", "plain")), flush=True)
        sys.stdin.readline()
        print(free(memory), count("plain"))
        """,
        **options,
    )
    assert said(process) == ["True"]
    assert said(process) == ["0", "0", "0", "1"]
    assert not ferry_of(process, short_dir).is_there
    told(process)
    assert said(process) == ["0", "0"]


def test_without_a_driver_its_names_are_not_there(run):
    process = subprocess.run(
        [
            sys.executable,
            "-c",
            "import ctypes; print(hasattr(ctypes.CDLL(None), 'cuInit'), hasattr(ctypes.CDLL(None), 'curious'))",
        ],
        env={**os.environ, "LD_PRELOAD": str(ferry_library.LIBRARY)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert process.stdout == "False False\n"


def test_a_destroyed_context_takes_its_memory_along(run):
    process = run("""
        memory = allocate(2 * MB), allocate(7 * MB)
        destroy = function("cuCtxDestroy", ctypes.c_void_p)
        print(destroy(1), count("handles"), count("reserved"))
    """)
    assert said(process) == ["0", "0", "0"]


def test_files_for_which_the_process_has_no_descriptors_are_refused(run, short_dir):
    process = run("""
        memory = allocate(20 * MB)
        add(memory, 20 * MB, 7)
        for line in sys.stdin:
            print(add(memory, 20 * MB, 0), flush=True)
    """)
    ferry = ferry_of(process, short_dir)
    wait_for(lambda: ferry.is_there)
    ferry.close_gate(30)
    limits = resource.prlimit(process.pid, resource.RLIMIT_NOFILE)

    def let_be_short():
        """Leave room for the connection and two of the files."""
        used = {int(name) for name in os.listdir(f"/proc/{process.pid}/fd")}
        free = [number for number in range(256) if number not in used]
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (free[2] + 1, limits[1]))

    file = StagingFile(ferry.file_path, 20 << 20, 5)
    with striped(ferry._tree, process.pid, file) as descriptors:
        let_be_short()
        with pytest.raises(FreezeFailed) as caught:
            ferry.copy_out(descriptors, [Range(0, 0, file.length)])
        assert caught.value.details.endswith(("Too many open files", "Broken pipe"))
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, limits)
        ferry.copy_out(descriptors, [Range(0, 0, file.length)])
        ferry.free()
        let_be_short()
        with pytest.raises(FreezeFailed) as caught, ferry._connected() as library:
            library.order(Order.FILL, 0, 1, descriptors=descriptors)
        assert caught.value.details.endswith("Too many open files")
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, limits)
        with ferry._connected() as library:
            library.order(Order.FILL, 0, 1, descriptors=descriptors)
    ferry.open_gate()
    told(process)
    assert said(process) == [str(7 | 7 << 8)]


@pytest.mark.parametrize("limit", [1, None])
def test_a_copy_has_as_many_threads_as_the_control_group_has_processors(
    run, short_dir, monkeypatch, limit
):
    process = run("""
        memory = allocate(64 * MB)
        add(memory, 64 * MB, 7)
        for line in sys.stdin:
            print(driver.driver_registered_bytes(), flush=True)
    """)
    found = ferry_of(process, short_dir)
    wait_for(lambda: found.is_there)
    found.close_gate(30)
    file = StagingFile(found.file_path, 64 << 20)
    asked, buffers = [], 2 * (4 << 20)
    monkeypatch.setattr(ferry_module, "processor_limit", lambda path: asked.append(path) or limit)
    with striped(found._tree, process.pid, file) as descriptors:
        found.copy_out(descriptors, [Range(0, 0, file.length)])
    told(process)
    threads = min(16, len(os.sched_getaffinity(process.pid)), limit or 16)
    assert said(process) == [str(threads * buffers)]
    assert asked == [Path(f"/proc/{process.pid}/cgroup")]


def test_a_limit_of_threads_ends_with_the_connection(run, short_dir, monkeypatch):
    """A snapshot contains the library's state."""
    process = run("""
        memory = allocate(64 * MB)
        for line in sys.stdin:
            print(driver.driver_registered_bytes(), flush=True)
    """)
    found = ferry_of(process, short_dir)
    wait_for(lambda: found.is_there)
    found.close_gate(30)
    with found._connected() as library:
        library.limit_threads(1)
    monkeypatch.setattr(ferry_module, "processor_limit", lambda path: None)
    file = StagingFile(found.file_path, 64 << 20)
    with striped(found._tree, process.pid, file) as descriptors:
        found.copy_out(descriptors, [Range(0, 0, file.length)])
    told(process)
    threads = min(16, len(os.sched_getaffinity(process.pid)))
    assert said(process) == [str(threads * 2 * (4 << 20))]


def test_more_memory_than_init_may_hold_descriptors_for_is_the_drivers(run):
    """A save gives each part to init as a descriptor; the hard limit is inherited by both."""
    process = run("""
        import resource
        resource.setrlimit(resource.RLIMIT_NOFILE, (134, 134))
        memory = [allocate(2 * MB) for _ in range(4)]
        print(count("handles"), count("plain"))
        huge = allocate(3 << 30)  # three parts, of which there is room for two
        print(count("handles"), count("plain"))
        memory += [allocate(2 * MB) for _ in range(4)]
        print(count("handles"), count("plain"))
        print(add(memory[-1], 2 * MB, 3) and add(memory[-1], 2 * MB, 0) >> 8 != 255, *map(free, [*memory, huge]))
        memory = allocate(2 * MB)
        print(count("handles"), count("plain"), count("mapped"), count("reserved"))
    """)
    assert said(process) == ["4", "0"]
    assert said(process) == ["4", "1"]
    assert said(process) == ["6", "3"]
    assert said(process) == ["True", *["0"] * 9]
    assert said(process) == ["1", "0", "1", "1"]


def test_descriptors_are_given_in_several_messages_where_few_files_may_be_open(run, short_dir):
    process = run("""
        memory = [allocate(2 * MB) for _ in range(10)]
        for line in sys.stdin:
            print("go")
    """)
    ferry = ferry_of(process, short_dir)
    wait_for(lambda: ferry.is_there)
    ferry.close_gate(30)
    limits = resource.prlimit(process.pid, resource.RLIMIT_NOFILE)
    used = {int(name) for name in os.listdir(f"/proc/{process.pid}/fd")}
    spare = [number for number in range(256) if number not in used]
    resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (spare[4] + 1, limits[1]))
    got: list[int] = []
    with ferry._connected() as library:
        while len(got) < 10:
            got += library.descriptors(len(got))
    resource.prlimit(process.pid, resource.RLIMIT_NOFILE, limits)
    assert len(set(got)) == 10
    close(got)


def test_the_socket_of_a_process_that_has_ended_is_not_anothers(run, short_dir):
    first = run("""
        memory = allocate(2 * MB)
        sys.stdin.readline()
    """)
    wait_for(lambda: ferry_of(first, short_dir).is_there)
    other = run("print('ready', flush=True)\nsys.stdin.readline()", with_ferry=False)
    said(other)
    first.kill()
    first.wait()
    # As if it had the pid of the first.
    (short_dir / "ferry" / str(first.pid)).rename(short_dir / "ferry" / str(other.pid))
    assert not ferry_of(other, short_dir).is_there
    assert not ferry_of(first, short_dir).is_there
