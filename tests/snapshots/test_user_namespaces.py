"""Kernels in a user namespace of their own, as those of an ordinary user are: nothing is different for them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from jupyter_gpuckpt.engine.criu import cache as criu_cache
from jupyter_gpuckpt.engine.tree import user_namespaces
from jupyter_gpuckpt.errors import KernelNotCheckpointable
from jupyter_gpuckpt.host import processes
from tests.as_user import ROOT
from tests.conftest import wait_for

STATUS = """
    import os, subprocess, sys, threading, time
    threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
    sleeper = subprocess.Popen(["sleep", "1000"])
    zombie = os.fork() or os._exit(0)
    status = lambda: dict(line.split(":", 1) for line in open("/proc/thread-self/status"))
    n = 0
    while True:
        n += 1
        names = "Uid", "Gid", "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp"
        made = open("made", "w")
        owner = os.fstat(made.fileno()).st_uid
        print(n, time.monotonic(), sleeper.poll(), owner, *(status()[name].split() for name in names), flush=True)
        made.close()
        time.sleep(0.01)
"""


@pytest.fixture
def own(engine):
    """Return the engine as an ordinary user has it, whoever runs the tests."""
    return replace(engine, user_namespace=True)


def twice_saved_and_resumed(program) -> Iterator[None]:
    """Save the program, then suspend and resume it, twice: a snapshot of what was resumed is resumed, too."""
    for _ in range(2):
        program.save()
        program.fresh_line()
        program.resume(program.save(stop=True).manifest.info.snapshot_id)
        yield


def test_a_kernel_has_its_user_and_no_capability_before_and_after(run, own):
    program = run(STATUS, engine=own)
    before = program.fresh_line().split(maxsplit=2)
    assert user_namespaces.has_own(program.tree.init_pid)
    uid = str(os.geteuid())
    fields = processes.status(program.tree.kernel_pid)
    assert fields["Uid"].split() == [uid] * 4
    assert {fields[f"Cap{name}"] for name in ("Inh", "Prm", "Eff", "Amb")} == {"0" * 16}
    assert before[2].split()[:2] == ["None", uid]
    for _ in range(3):
        began = time.monotonic()
        program.fresh_line()
        saved = program.save()
        assert (saved.manifest.uid, saved.manifest.gid) == (os.geteuid(), os.getegid())
        suspended = program.save(stop=True)
        last, count = program.lines()[-1].split(maxsplit=2), len(program.lines())
        program.resume(suspended.manifest.info.snapshot_id)
        first = program.lines(more_than=count)[count].split(maxsplit=2)
        assert int(first[0]) == int(last[0]) + 1
        assert 0 < float(first[1]) - float(last[1]) < time.monotonic() - began
        assert first[2] == before[2]
    program.resume(saved.manifest.info.snapshot_id)
    assert program.fresh_line().split(maxsplit=2)[2] == before[2]


GONE = """
    import ctypes, mmap, multiprocessing, os, shutil, sys, time
    fork = multiprocessing.get_context("fork")
    lock, counter, queue = fork.Lock(), fork.Value("i", 0), fork.Queue()
    back = fork.Queue()

    # A memfd: open and mapped; and one that is only mapped, here and in the child.
    descriptor = os.memfd_create("open")
    os.ftruncate(descriptor, 8192)
    opened = mmap.mmap(descriptor, 8192)
    closed_fd = os.memfd_create("closed")
    os.ftruncate(closed_fd, 3 << 20)
    closed = mmap.mmap(closed_fd, 3 << 20)
    duplicate = ctypes.pythonapi  # keeps ctypes
    # A file on the disk without a name, mapped twice: here for reading only as well.
    with open("unlinked", "w+b") as file:
        file.truncate(100_000)
        shared = mmap.mmap(file.fileno(), 100_000)
        alone = mmap.mmap(file.fileno(), 100_000, access=mmap.ACCESS_COPY)
        os.unlink("unlinked")
    shared[99_999:] = b"s"
    alone[50_000:50_001] = b"a"
    # A library that is replaced after it was loaded.
    import _bisect
    shutil.copyfile(_bisect.__file__, "copy.so")
    library = ctypes.CDLL("./copy.so")
    shutil.copyfile(_bisect.__file__, "new.so")
    os.rename("new.so", "copy.so")

    def work():
        n = 0
        while True:
            n = queue.get()
            with lock:
                counter.value += 1
            assert closed[1 << 20] == n % 256, (closed[1 << 20], n)
            assert shared[50_000] == n % 256 and opened[4096] == n % 256
            closed[2 << 20] = shared[70_000] = n % 256
            back.put(n)

    workers = [fork.Process(target=work, daemon=True) for _ in range(2)]
    for worker in workers:
        worker.start()
    # mmap keeps a descriptor of its own: what is mapped by nothing but the mapping is mapped by libc.
    libc = ctypes.CDLL(None)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
    bare_fd = os.memfd_create("bare")
    os.ftruncate(bare_fd, 4096)
    bare = libc.mmap(None, 4096, 3, 1, bare_fd, 0)
    os.close(bare_fd)
    ctypes.memset(bare, 7, 4096)
    n = 0
    while True:
        n += 1
        closed[1 << 20] = shared[50_000] = n % 256
        os.pwrite(descriptor, bytes([n % 256]), 4096)
        queue.put(n)
        assert back.get(timeout=120) == n
        assert closed[2 << 20] == shared[70_000] == n % 256
        assert opened[4096] == n % 256 and os.pread(closed_fd, 1, 2 << 20)[0] == n % 256
        assert alone[50_000:50_001] == b"a" and shared[99_999:] == b"s"
        assert library.PyInit__bisect and ctypes.string_at(bare, 4096) == bytes([7]) * 4096
        print(n, counter.value, flush=True)
        time.sleep(0.01)
"""


def test_files_that_are_only_mapped_stay_what_they_are_to_each_other(run, own):
    program = run(GONE, engine=own)
    program.lines(more_than=3)
    for _ in twice_saved_and_resumed(program):
        for _ in range(3):
            n, counted = program.fresh_line().split()
            assert n == counted
    assert not list(program.tree.scratch.glob("gone*"))


@pytest.mark.skipif(os.geteuid() != 0, reason="being two users needs root")
@pytest.mark.parametrize("saved_by", ["root", "a user"])
def test_a_snapshot_of_another_user_comes_back_as_ours(short_dir, saved_by):
    """The program sees the ids that it had; for everybody else it is a process of whoever resumed it."""
    short_dir.chmod(0o777)
    root = [sys.executable, "-m", "tests.snapshots.another_user"]
    user = [sys.executable, "-m", "tests.as_user", *root]
    first, then = (root, user) if saved_by == "root" else (user, root)
    snapshot_id = _done([*first, "suspend", str(short_dir)]).strip()
    # As an archive would bring it: the store is the other's.
    for path in [*short_dir.rglob("*")]:
        os.chown(path, *((65533, 65533) if saved_by == "root" else (0, 0)))
    _done([*then, "resume", str(short_dir), snapshot_id])


def _done(words):
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False, umask=0)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


WATCH = """
    import ctypes, os, select, struct, time
    libc = ctypes.CDLL(None, use_errno=True)
    os.makedirs("deep/er")
    os.mkdir("elsewhere")
    open("deep/file", "w").close()
    d = libc.inotify_init1(os.O_NONBLOCK)
    assert libc.inotify_add_watch(d, b"deep/er", 0x100) == 1  # IN_CREATE
    assert libc.inotify_add_watch(d, b"deep/file", 0x2) == 2  # IN_MODIFY
    os.chdir("elsewhere")
    n = 0
    while True:
        n += 1
        told = set()
        while told != {1, 2}:  # what is in the queue when it is saved is lost
            open(f"../deep/er/{n}-{time.monotonic_ns()}", "w").close()
            with open("../deep/file", "a") as file:
                file.write("x")
            if select.select([d], [], [], 1)[0]:
                events = os.read(d, 65536)
                while events:
                    watch, mask, cookie, length = struct.unpack_from("iIII", events)
                    told.add(watch)
                    events = events[16 + length:]
        print(n, flush=True)
        time.sleep(0.05)
"""


def test_watched_files_and_folders_are_found_again(run, own):
    program = run(WATCH, engine=own)
    program.lines(more_than=2)
    for _ in twice_saved_and_resumed(program):
        program.fresh_line()


CLOSED = """
    import os, socket, time
    os.makedirs("closed")
    kept, again = open("closed/kept", "w+"), open("closed/kept")
    os.unlink("closed/kept")
    os.chmod("closed", 0o555)
    os.mkdir("gone")
    lost = open("gone/lost", "w+")
    os.unlink("gone/lost")
    os.rmdir("gone")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind("socket")
    listener.listen()
    n = 0
    while True:
        n += 1
        kept.write("k")
        kept.flush()
        lost.write("l")
        lost.flush()
        assert os.fstat(again.fileno()).st_size == os.fstat(lost.fileno()).st_size == n
        with socket.socket(socket.AF_UNIX) as client:
            client.connect("socket")
            listener.accept()[0].close()
        print(n, os.stat("closed").st_mode & 0o777, flush=True)
        time.sleep(0.05)
"""


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write in every folder")
def test_deleted_files_of_folders_that_are_closed_now_come_back(run):
    program = run(CLOSED)
    program.lines(more_than=2)
    for _ in twice_saved_and_resumed(program):
        program.fresh_line()


SHARED = """
    import os, socket, sys, time
    os.chdir(os.path.join(os.environ["SHARED"]))
    unnamed = open("unnamed", "w+")
    os.unlink("unnamed")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind("socket")
    listener.listen()
    n = 0
    while True:
        n += 1
        unnamed.write("x")
        unnamed.flush()
        assert os.fstat(unnamed.fileno()).st_size == n
        with socket.socket(socket.AF_UNIX) as client:
            client.connect("socket")
            listener.accept()[0].close()
        print(n, os.getgid(), len(os.getgroups()), flush=True)
        time.sleep(0.05)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="changing one's groups needs root")
def test_groups_may_change_meanwhile_and_files_may_belong_to_others(
    run, own, tmp_path, monkeypatch
):
    shared = tmp_path / "shared"
    shared.mkdir()
    os.chown(shared, -1, 2000)
    shared.chmod(0o2770)
    monkeypatch.setenv("SHARED", str(shared))
    groups = os.getgroups()
    try:
        os.setgroups([2000, 3000])
        program = run(SHARED, engine=own)
        assert program.fresh_line().split()[1:] == [str(os.getegid()), "2"]
        for now in ([4000], [], [2000, 3000, 4000]):
            suspended = program.save(stop=True)
            os.setgroups(now)
            count = len(program.lines())
            program.resume(suspended.manifest.info.snapshot_id)
            line = program.lines(more_than=count)[count].split()
            # Without a group it keeps what CRIU has, which is none; else it has those of whoever resumed it.
            assert line[1:] == [str(os.getegid()), str(len(now))]
    finally:
        os.setgroups(groups)


def test_what_criu_found_out_serves_the_next_kernel(run, own):
    first = run(STATUS, engine=own)
    first.fresh_line()
    first.save()
    known = own.spill_dir / criu_cache.NAME
    before = known.read_bytes()
    second = run(STATUS, engine=own)
    second.fresh_line()
    assert not (second.tree.scratch / known.name).exists()
    second.resume(second.save(stop=True).manifest.info.snapshot_id)
    assert (second.tree.scratch / known.name).read_bytes() == before
    second.fresh_line()


SSH = """
    import subprocess, time
    while True:
        done = subprocess.run(["ssh", "-G", "elsewhere"], capture_output=True, text=True)
        print(done.returncode, "port 2345" in done.stdout, flush=True)
        time.sleep(0.05)
"""


@pytest.mark.skipif(os.geteuid() == 0, reason="root's files are root's in its namespace")
def test_ssh_takes_its_settings(run):
    if not os.path.isfile("/etc/ssh/ssh_config.d/gpuckpt-test.conf"):
        pytest.skip("started by the next test")
    program = run(SSH)
    assert program.fresh_line().split() == ["0", "True"]
    program.resume(program.save(stop=True).manifest.info.snapshot_id)
    assert program.fresh_line().split() == ["0", "True"]


@pytest.mark.skipif(os.geteuid() != 0, reason="laying a file over others needs root")
def test_ssh_takes_settings_that_belong_to_root(monkeypatch):
    monkeypatch.setenv("GPUCKPT_TEST_USER", "daemon")  # ssh wants one that has a name
    if not os.path.isdir("/etc/ssh/ssh_config.d") or not shutil.which("ssh"):
        pytest.skip("there is no ssh here")
    script = (
        "mount -t tmpfs none /etc/ssh/ssh_config.d &&"
        " echo 'Port 2345' >/etc/ssh/ssh_config.d/gpuckpt-test.conf && exec \"$@\""
    )
    words = ["unshare", "--mount", "sh", "-c", script, "sh", sys.executable, "-m", "tests.as_user"]
    test = f"{__file__}::{test_ssh_takes_its_settings.__name__}"
    done = _done([*words, sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", test])
    assert "1 passed" in done, done


SPARSE = """
    import mmap, os, time
    shared = mmap.mmap(-1, 256 << 20)
    shared[200 << 20] = 7
    if not os.fork():
        shared[100 << 20] = 9  # only the child has looked at this
        os._exit(0)
    os.wait()
    child = os.fork()
    n = 0
    while True:
        n += 1
        if not child:
            shared[:8] = n.to_bytes(8, "little")
            shared[150 << 20] = 5
        else:
            told = int.from_bytes(shared[:8], "little")
            rest = shared[1 << 20:5 << 20].count(0)
            print(told, shared[100 << 20], shared[150 << 20], shared[200 << 20], rest, flush=True)
        time.sleep(0.01)
"""


def test_memory_that_processes_share_comes_back_whole_and_holes_cost_nothing(run, own):
    program = run(SPARSE, engine=own)
    wanted = ["9", "5", "7", str(4 << 20)]
    wait_for(lambda: program.fresh_line().split()[1:] == wanted)
    for _ in range(2):
        manifest = program.save(stop=True).manifest
        assert manifest.info.sizes.raw_bytes < 64 << 20
        program.resume(manifest.info.snapshot_id)
        first = program.fresh_line().split()
        assert first[1:] == wanted
        wait_for(lambda: int(program.fresh_line().split()[0]) > int(first[0]))  # noqa: B023


def test_a_process_that_lets_nobody_look_into_it_is_refused_by_name(run, own):
    if not os.geteuid():
        pytest.skip("root may look into it")
    program = run(
        "import ctypes, os, time\n"
        "if not os.fork():\n ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)\n time.sleep(1000)\n"
        "while True:\n print(1, flush=True)\n time.sleep(0.01)",
        engine=own,
    )
    program.lines(more_than=5)
    for stop in (False, True):
        with pytest.raises(KernelNotCheckpointable, match="read its memory: python"):
            program.save(stop=stop)
        program.fresh_line()
