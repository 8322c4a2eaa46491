"""host.processes: facts from /proc about real processes, and no exception when one is gone."""

import mmap
import os
import select
import signal
import subprocess
import sys
import time

import pytest

from jupyter_gpuckpt.host import memory_limits, processes
from jupyter_gpuckpt.linux import control_groups

NOBODY = 2**22 + 1  # above the largest possible pid


@pytest.fixture
def sleeper():
    process = subprocess.Popen(["sleep", "60"])
    yield process
    process.kill()
    process.wait()


@pytest.fixture
def family():
    """Yield a shell with two children, one of which has a child."""
    script = "sleep 60 & sh -c 'sleep 60 & wait' & echo ready; wait"
    process = subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE, start_new_session=True)
    process.stdout.readline()
    deadline = time.monotonic() + 120
    while len(processes.descendants(process.pid)) < 3 and time.monotonic() < deadline:
        time.sleep(0.01)
    yield process
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()


def until(condition):
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


FACTS = [
    processes.start_time,
    processes.state,
    processes.parent,
    processes.process_group,
    processes.session,
    processes.name,
    processes.arguments,
    processes.status,
    processes.uid,
    processes.nspid,
    processes.threads,
    processes.context_switches,
    processes.children,
    processes.descendants,
    processes.descriptors,
    processes.maps,
    processes.open_pidfd,
]


@pytest.mark.parametrize("fact", FACTS, ids=lambda fact: fact.__name__)
def test_a_vanished_process_is_none_or_empty(fact):
    assert not fact(NOBODY)


def test_a_vanished_process_weighs_nothing_and_is_not_alive():
    assert processes.memory(NOBODY) == processes.Memory()
    assert not processes.exists(NOBODY)
    assert not processes.alive(NOBODY)


def test_a_zombie_exists_but_is_not_alive(sleeper):
    sleeper.kill()
    until(lambda: processes.state(sleeper.pid) == "Z")
    assert processes.exists(sleeper.pid)
    assert not processes.alive(sleeper.pid)
    assert processes.maps(sleeper.pid) == []
    assert processes.descriptors(sleeper.pid) == {}
    assert processes.memory(sleeper.pid) == processes.Memory()


def test_pid_and_start_time_name_one_process(sleeper):
    start = processes.start_time(sleeper.pid)
    assert processes.alive(sleeper.pid)
    assert start >= processes.start_time(os.getpid())


def test_a_stopped_process_is_in_state_t(sleeper):
    until(lambda: processes.state(sleeper.pid) == "S")
    os.kill(sleeper.pid, signal.SIGSTOP)
    until(lambda: processes.state(sleeper.pid) == "T")
    counts = processes.context_switches(sleeper.pid)
    time.sleep(0.05)
    assert counts
    assert processes.context_switches(sleeper.pid) == counts


def test_a_name_with_parentheses_and_spaces_misleads_nobody(tmp_path):
    program = tmp_path / "a) R 1 (b"
    program.symlink_to("/bin/sleep")
    process = subprocess.Popen([program, "60"])
    try:
        until(lambda: processes.name(process.pid) == program.name)
        assert processes.parent(process.pid) == os.getpid()
        assert processes.arguments(process.pid) == [str(program), "60"]
    finally:
        process.kill()
        process.wait()


def test_there_may_be_more_generations_than_python_calls(monkeypatch):
    last = 2 * sys.getrecursionlimit()
    monkeypatch.setattr(processes, "children", lambda pid: [pid + 1] if pid < last else [])
    assert processes.descendants(1) == list(range(2, last + 1))


def test_descendants_come_parents_first(family):
    children = processes.children(family.pid)
    found = processes.descendants(family.pid)
    assert len(children) == 2
    assert len(found) == 3
    assert family.pid not in found
    for pid in found:
        parent = processes.parent(pid)
        assert parent == family.pid or found.index(parent) < found.index(pid)


def test_children_of_every_thread_are_found():
    program = (
        "import subprocess, threading, sys\n"
        "def work():\n"
        "    child = subprocess.Popen(['sleep', '60']); print(child.pid, flush=True)\n"
        "    sys.stdin.read(); child.kill(); child.wait()\n"
        "thread = threading.Thread(target=work); thread.start(); thread.join()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        child = int(process.stdout.readline())
        assert processes.children(process.pid) == [child]
        assert len(processes.threads(process.pid)) == 2
        assert processes.threads(process.pid)[0] == process.pid
    finally:
        process.stdin.close()
        process.wait()
        process.stdout.close()


def test_the_innermost_pid_is_told():
    assert processes.nspid(os.getpid()) == os.getpid()
    if os.geteuid() != 0:
        pytest.skip("a PID namespace needs root")
    process = subprocess.Popen(
        ["unshare", "--pid", "--fork", "--kill-child", "sh", "-c", "echo ready; exec sleep 60"],
        stdout=subprocess.PIPE,
    )
    try:
        process.stdout.readline()
        (inside,) = processes.children(process.pid)
        assert processes.nspid(inside) == 1
        assert processes.namespace(inside, "pid") != processes.namespace(os.getpid(), "pid")
        assert processes.namespace(inside, "mnt") == processes.namespace(os.getpid(), "mnt")
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_descriptors_say_what_they_refer_to(tmp_path):
    path = tmp_path / "open file"
    with path.open("w") as file:
        assert processes.descriptors(os.getpid())[file.fileno()] == str(path)
        path.unlink()
        assert processes.descriptors(os.getpid())[file.fileno()] == f"{path} (deleted)"


def test_maps_hold_address_rights_and_path(tmp_path):
    path = tmp_path / "with space"
    path.write_bytes(b"x" * 8192)
    with (
        path.open("r+b") as file,
        mmap.mmap(file.fileno(), 4096, flags=mmap.MAP_SHARED, offset=4096) as mapped,
    ):
        assert mapped[0] == ord("x")
        (found,) = [one for one in processes.maps(os.getpid()) if one.path == str(path)]
    assert (found.end - found.start, found.offset, found.perms) == (4096, 4096, "rw-s")
    assert found.inode == path.stat().st_ino
    assert not found.private
    heap = [one for one in processes.maps(os.getpid()) if one.path == "[heap]"]
    assert heap[0].private
    assert heap[0].inode == 0


def test_memory_counts_private_and_shared_pages():
    before = processes.memory(os.getpid())
    with mmap.mmap(-1, 32 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as mine:
        for offset in range(0, len(mine), 4096):
            mine[offset] = 1
        grown = processes.memory(os.getpid())
    assert grown.private_bytes - before.private_bytes >= 31 << 20
    assert grown.proportional_bytes - before.proportional_bytes >= 31 << 20
    assert grown.shared_bytes > 0


def test_available_memory_is_within_the_machine():
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert 0 < processes.mem_available() <= total


def test_a_pidfd_waits_signals_and_survives_the_process(sleeper):
    pidfd = processes.open_pidfd(sleeper.pid)
    try:
        assert not select.select([pidfd], [], [], 0.01)[0]
        assert processes.send_signal(pidfd, signal.SIGKILL)
        assert select.select([pidfd], [], [], 10)[0]
        sleeper.wait()
        assert not processes.send_signal(pidfd, signal.SIGKILL)
    finally:
        os.close(pidfd)


def test_the_tightest_group_above_decides(tmp_path):
    """The same files as the operating system's, with limits that a test may not set for itself."""
    outer = tmp_path / "fs" / "outer"
    inner = outer / "inner"
    inner.mkdir(parents=True)
    (inner / "memory.max").write_text("max\n")
    (inner / "memory.current").write_text("100\n")
    (outer / "memory.max").write_text("1000\n")
    (outer / "memory.current").write_text("700\n")
    (outer / "memory.stat").write_text("anon 400\ninactive_file 50\n")
    membership = tmp_path / "cgroup"
    membership.write_text("0::/outer/inner\n")
    assert memory_limits.headroom(memory_limits.groups(tmp_path / "fs", membership)) == 350
    (inner / "memory.max").write_text("110\n")
    assert memory_limits.headroom(memory_limits.groups(tmp_path / "fs", membership)) == 10
    membership.write_text("0::/\n")
    assert memory_limits.headroom(memory_limits.groups(tmp_path / "fs", membership)) is None


def test_memory_that_linux_can_reclaim_counts_as_free(tmp_path):
    membership = tmp_path / "cgroup"
    membership.write_text("2:memory:/box\n0::/box\n")
    old, new = tmp_path / "fs" / "memory" / "box", tmp_path / "fs" / "box"
    for group, used, limit, prefix in (
        (old, "memory.usage_in_bytes", "memory.limit_in_bytes", "total_"),
        (new, "memory.current", "memory.max", ""),
    ):
        group.mkdir(parents=True)
        (group / used).write_text("950\n")
        (group / limit).write_text("1000\n")
        names = {"anon": 1, "inactive_file": 200, "active_file": 400}
        stat = [f"{prefix}{name} {size}" for name, size in names.items()]
        if prefix:
            stat += ["inactive_file 7", "active_file 7"]
        else:
            stat += ["slab_reclaimable 30", "slab_unreclaimable 7"]
        (group / "memory.stat").write_text("\n".join(stat) + "\n")
    limits = memory_limits.limits(tmp_path / "fs", membership)
    assert [(one.folder, one.free_bytes) for one in limits] == [(old, 650), (new, 680)]


def test_groups_of_version_1_count_too(tmp_path):
    group = tmp_path / "fs" / "memory" / "box"
    group.mkdir(parents=True)
    (group / "memory.limit_in_bytes").write_text("1000\n")
    (group / "memory.usage_in_bytes").write_text("1200\n")
    membership = tmp_path / "cgroup"
    membership.write_text("3:cpu:/\n2:memory:/box\n0::/\n")
    assert memory_limits.headroom(memory_limits.groups(tmp_path / "fs", membership)) == 0
    (group / "memory.limit_in_bytes").write_text(f"{2**63 - 4096}\n")
    assert memory_limits.headroom(memory_limits.groups(tmp_path / "fs", membership)) is None


def test_a_limit_of_processor_time_counts_as_so_many_processors(tmp_path, monkeypatch):
    """The same files as the operating system's, of both versions."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)))
    old, new = tmp_path / "fs" / "cpu" / "box", tmp_path / "fs" / "outer"
    for folder in (old, new / "inner"):
        folder.mkdir(parents=True)
    membership = tmp_path / "cgroup"
    membership.write_text("2:cpu,cpuacct:/box\n0::/outer/inner\n")

    def processors():
        return control_groups.processors(tmp_path / "fs", membership)

    assert processors() == 64
    assert control_groups.processor_limit(membership, tmp_path / "fs") is None
    (old / "cpu.cfs_quota_us").write_text("-1\n")
    (old / "cpu.cfs_period_us").write_text("100000\n")
    (new / "inner" / "cpu.max").write_text("max 100000\n")
    assert processors() == 64
    (new / "cpu.max").write_text("450000 100000\n")
    assert processors() == 5
    assert control_groups.processor_limit(membership, tmp_path / "fs") == 5
    (old / "cpu.cfs_quota_us").write_text("20000\n")
    assert processors() == 1


def test_a_real_limit_of_processor_time_is_found():
    """Limit a group of version 1 or 2, whichever this machine has."""
    folder, modern = control_groups.ROOT / "cpu", False
    if not folder.is_dir():
        folder, modern = control_groups.ROOT, True
    group = folder / f"gpuckpt-test-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made: {error}")
    try:
        try:
            (group / ("cpu.max" if modern else "cpu.cfs_quota_us")).write_text("100000")
        except OSError as error:
            pytest.skip(f"the controller of processors is not there: {error}")
        code = "from jupyter_gpuckpt.linux.control_groups import processors; print(processors())"
        script = f'echo $$ > {group}/cgroup.procs; exec "$@"'
        command = ["sh", "-c", script, "sh", sys.executable, "-c", code]
        found = subprocess.run(command, capture_output=True, text=True, check=True)
        assert found.stdout == "1\n"
    finally:
        group.rmdir()


def test_the_processor_time_has_that_of_children_that_have_ended():
    """A worker's time is still counted when it has ended."""
    work = "t=time.process_time()\nwhile time.process_time() < t + 0.2: pass"
    code = f"import os, sys, time\nif not os.fork():\n exec({work!r})\n os._exit(0)\nos.wait()\nprint()\nsys.stdin.read()"
    words = [sys.executable, "-c", code]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as program:
        assert program.stdout.readline() == b"\n"
        assert processes.children(program.pid) == []
        assert processes.processor_seconds(program.pid) >= 0.18
    assert processes.processor_seconds(program.pid) == 0
