"""What CRIU does not keep: the audit sets it again, or warns of it (engine/audit)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import msgspec
import pytest

from jupyter_gpuckpt.engine import recovery
from jupyter_gpuckpt.snapshots.resume import resume
from jupyter_gpuckpt.wire.manifest_records import Chunk, Stream
from jupyter_gpuckpt.wire.progress import Progress
from tests.conftest import wait_for

ATTRIBUTES = """
    import ctypes, fcntl, json, os, select, signal, socket, struct, sys, termios, threading, time
    libc = ctypes.CDLL(None, use_errno=True)
    LO = socket.inet_aton("127.0.0.1")
    datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    datagrams.bind(("127.0.0.1", 0))
    six = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
    listener = socket.create_server(("127.0.0.1", 0))
    IP, SOCKET, TCP, UDP, IPV6 = 0, 1, 6, 17, 41
    OPTIONS = {
        datagrams: [
            (IP, 10, 2), (IP, 11, 1), (IP, 33, 7), (IP, 34, 0), (IP, 49, 0), (UDP, 103, 1200), (UDP, 104, 1),
            (SOCKET, 29, 1), (SOCKET, 40, 1), (SOCKET, 46, 50),
        ],
        six: [(IPV6, 18, 7), (IPV6, 19, 0), (IPV6, 25, 1), (IPV6, 49, 1), (IPV6, 66, 1), (IPV6, 67, 32)],
        listener: [(TCP, 7, 3), (TCP, 9, 7), (TCP, 18, 5000), (TCP, 23, 9), (TCP, 25, 20000), (TCP, 2, 900)],
    }
    for end, options in OPTIONS.items():
        for level, name, value in options:
            end.setsockopt(level, name, value)
    listener.setsockopt(6, 13, b"reno")
    datagrams.setsockopt(0, socket.IP_ADD_MEMBERSHIP, socket.inet_aton("239.1.2.3") + LO)
    datagrams.setsockopt(0, socket.IP_MULTICAST_IF, LO)
    def prctl(option, *rest):
        return libc.prctl(option, *map(ctypes.c_ulong, rest), *[ctypes.c_ulong(0)] * (4 - len(rest)))
    libc.syscall(251, 1, 0, 3 << 13)  # ioprio_set: idle
    prctl(29, 123456)  # timer slack
    prctl(33, 1, 1)  # machine check policy
    prctl(67, 1)  # memory merge
    prctl(1, signal.SIGUSR1)  # death signal
    prctl(38, 1)  # no new privileges
    libc.personality(0x0040000)  # ADDR_NO_RANDOMIZE
    libc.syscall(238, 1, struct.pack("Q", 1), 64)  # set_mempolicy: MPOL_PREFERRED, node 0
    open("/proc/self/coredump_filter", "w").write("0x7f")
    open("/proc/self/oom_score_adj", "w").write("321")
    open("/proc/self/autogroup", "w").write("5")
    os.setpriority(os.PRIO_PROCESS, 0, 3)
    os.umask(0o27)
    signal.signal(signal.SIGTRAP, lambda *_: None)
    timer = libc.timerfd_create(0, 0)
    at = int(time.time()) + 10000
    libc.timerfd_settime(timer, 3, struct.pack("4q", 0, 0, at, 0), None)
    read_end, write_end = os.pipe()
    fcntl.fcntl(write_end, 1031, 1 << 17)
    fcntl.fcntl(read_end, 8, os.getpid()), fcntl.fcntl(read_end, 10, signal.SIGUSR2)
    if not os.fork():  # a child that shares the descriptors
        while True:
            time.sleep(1000)
    seen = {}
    def slack():
        prctl(29, 777777)
        while True:
            seen["thread"] = prctl(30), libc.syscall(252, 1, 0)
            time.sleep(0.001)
    threading.Thread(target=slack, daemon=True).start()
    def left():
        buffer = ctypes.create_string_buffer(32)
        libc.timerfd_gettime(timer, buffer)
        seconds, nanoseconds = struct.unpack("16x2q", buffer.raw)
        return abs(time.time() + seconds + nanoseconds / 1e9 - at) < 0.2
    def membership():
        try:
            datagrams.setsockopt(0, socket.IP_DROP_MEMBERSHIP, socket.inet_aton("239.1.2.3") + LO)
        except OSError:
            return False
        datagrams.setsockopt(0, socket.IP_ADD_MEMBERSHIP, socket.inet_aton("239.1.2.3") + LO)
        return True
    def read(path):
        return open("/proc/self/" + path).read().strip()
    def all_of_it():
        seen.clear()
        while not seen:
            time.sleep(0.001)
        found = {
            f"option {level} {name}": end.getsockopt(level, name)
            for end, options in OPTIONS.items() for level, name, _ in options
        }
        out = ctypes.c_int()
        libc.prctl(2, ctypes.byref(out))
        found |= {"congestion": listener.getsockopt(6, 13, 16).decode(), "membership": membership(),
            "interface": datagrams.getsockopt(0, socket.IP_MULTICAST_IF),
            "ioprio": libc.syscall(252, 1, 0), "slack": prctl(30), "mce": prctl(34), "merge": prctl(68), "death": out.value,
            "personality": libc.personality(0xffffffff), "thread": seen["thread"],
            "core": read("coredump_filter"), "oom": read("oom_score_adj"),
            "autogroup": read("autogroup").split()[-1], "nice": os.getpriority(0, 0),
            "signals": [l for l in read("status").splitlines() if l.startswith(("SigIgn", "SigCgt", "NoNew"))],
            "timer": left(), "pipe": fcntl.fcntl(write_end, 1032),
            "owner": fcntl.fcntl(read_end, 9), "sig": fcntl.fcntl(read_end, 11)}
        return found
    while True:
        print(json.dumps(all_of_it()), flush=True)
        time.sleep(0.02)
"""


def test_attributes_that_criu_does_not_keep_come_back(run):
    program = run(ATTRIBUTES)
    before = json.loads(program.fresh_line())
    program.save()
    assert json.loads(program.fresh_line()) == before
    resumed = program.resume(program.save(stop=True).manifest.info.snapshot_id)
    assert json.loads(program.fresh_line()) == before
    assert resumed.warnings == []


TERMINALS = """
    import json, os, pty, sys, termios, time, tty
    from pathlib import Path
    def child(text):
        pid, main = pty.fork()
        if not pid:
            os.write(1, text)
            os._exit(0)
        os.waitpid(pid, 0)
        return main
    ended = child(b"last words\\nof a child\\n")
    silent = child(b"")
    empty = child(b"x")
    os.read(empty, 10)
    main, other = pty.openpty()
    os.write(other, b"one\\ntwo\\n")
    os.write(main, b"typed\\rahead")
    raw, end = pty.openpty()
    tty.setraw(end)
    # Its other end was not opened yet.
    unused = os.open("/dev/ptmx", os.O_RDWR | os.O_NOCTTY)
    os.write(raw, b"in\\rput")
    os.write(end, b"out\\nput")
    print("ready", flush=True)
    def read(end):
        found = b""
        os.set_blocking(end, False)
        try:
            while True:
                found += os.read(end, 100)
        except BlockingIOError:
            return found.decode() + "..."
        except OSError as error:
            return found.decode() + error.strerror
    while not Path("go").exists():
        time.sleep(0.01); print("waits", flush=True)
    print(json.dumps([read(x) for x in (ended, silent, empty, main, unused)]), flush=True)
    os.write(main, b"\\r")
    print(json.dumps([read(x) for x in (other, main, raw, end)]), flush=True)
    time.sleep(100)
"""

#: What a program reads there that was not saved.
READ = [
    [
        "last words\r\nof a child\r\nInput/output error",
        "Input/output error",
        "Input/output error",
        "one\r\ntwo\r\ntyped\r\nahead...",
        "...",
    ],
    ["typed\nahead\n...", "\r\n...", "out\nput...", "in\rput..."],
]


def test_bytes_that_wait_in_terminals_are_read_once_and_unchanged(run):
    program = run(TERMINALS)
    program.lines()
    program.save()
    resumed = program.resume(program.save(stop=True).manifest.info.snapshot_id)
    assert resumed.warnings == []
    (program.log.parent / "go").touch()
    wait_for(lambda: [json.loads(line) for line in program.lines() if line[0] == "["] == READ)


def test_a_terminal_s_bytes_survive_the_daemon_s_death(run, killed_in_standstill):
    program = run(TERMINALS)
    program.lines()
    killed_in_standstill(program.tree, "begin")
    recovery.recover(program.tree)
    (program.log.parent / "go").touch()
    wait_for(lambda: [json.loads(line) for line in program.lines() if line[0] == "["] == READ)


COUNTING = """
    import threading, time
    def count():
        n = 0
        while True:
            n += 1
            print(n, threading.get_ident(), flush=True)
            time.sleep(0.01)
    for _ in range(3):
        threading.Thread(target=count).start()
"""


def test_threads_run_on_if_the_daemon_dies_while_it_asks_them(run, killed_in_standstill):
    program = run(COUNTING)
    threads = {program.fresh_line().split()[1]}
    wait_for(lambda: threads.add(program.fresh_line().split()[1]) or len(threads) == 3)
    killed_in_standstill(program.tree, "ask")
    recovery.recover(program.tree)
    again = {program.fresh_line().split()[1]}
    wait_for(lambda: again.add(program.fresh_line().split()[1]) or again == threads)


@pytest.fixture
def killed_in_standstill():
    def kill(tree, moment):
        """Let another process begin a standstill of the tree, and kill itself in the middle of the audit's work there."""
        words = [sys.executable, "-m", "tests.snapshots.killed_in_standstill", moment]
        done = subprocess.run([*words, msgspec.json.encode(tree).decode()], check=False)
        assert done.returncode == -signal.SIGKILL

    return kill


SQLITE = """
    import os, sqlite3, time
    base = sqlite3.connect("rows.sqlite", isolation_level=None)
    base.execute("pragma journal_mode=wal")
    base.execute("create table t (x)")
    while True:
        [index] = [fd for fd in range(3, 9) if os.path.realpath(f"/proc/self/fd/{fd}").endswith("-shm")]
        print("lock:" in open(f"/proc/self/fdinfo/{index}").read(), flush=True)
        time.sleep(0.02)
"""


def test_sqlite_keeps_its_lock_on_the_index_that_it_maps(run):
    program = run(SQLITE)
    assert program.fresh_line() == "True"
    resumed = program.resume(program.save(stop=True).manifest.info.snapshot_id)
    assert resumed.warnings == []
    assert program.fresh_line() == "True"


LOST = """
    import ctypes, os, sys, time
    libc = ctypes.CDLL(None)
    watch = libc.inotify_init()
    libc.inotify_add_watch(watch, os.getcwd().encode(), 0x100)
    # Names in Linux are bytes.
    os.open(b"new\\xff", os.O_CREAT)
    libc.prctl(15, b"name\\xff")
    libc.syscall(248, b"user", b"name", b"secret", 6, -1)  # add_key, into the thread's keyring
    while True:
        print("runs", flush=True)
        time.sleep(0.02)
"""


def test_what_cannot_come_back_is_told(run):
    program = run(LOST)
    program.fresh_line()
    resumed = program.resume(program.save(stop=True).manifest.info.snapshot_id)
    program.fresh_line()
    name = f"name\\xff (process {program.tree.kernel_nspid})"
    assert resumed.warnings == [
        f"After the resume, keys of the thread keyring of {name} are missing.",
        f"After the resume, unread events of descriptor 3 (inotify) of {name} are missing.",
    ]


def test_a_snapshot_without_readable_facts_is_resumed(run):
    program = run(COUNTING)
    program.fresh_line()
    manifest = program.save(stop=True).manifest
    lost = [Chunk(os.urandom(32), chunk.length) for chunk in manifest.stream("audit").chunks]
    other = [
        Stream("audit", one.length, lost) if one.name == "audit" else one
        for one in manifest.streams
    ]
    changed = msgspec.structs.replace(manifest, streams=other)
    resumed = resume(
        changed,
        program.store,
        program.engine,
        exit_path=program.log.parent / "exit",
        progress=Progress(),
    )
    program.follow(resumed.tree)
    assert resumed.warnings == []
    program.fresh_line()


POLICIES = """
    import ctypes, json, os, struct, threading, time
    libc = ctypes.CDLL(None, use_errno=True)
    RESET = os.SCHED_RESET_ON_FORK
    def deadline():
        wanted = struct.pack("=IIQiIQQQ", 48, 6, 0, 0, 0, 1_000_000, 10_000_000, 20_000_000)
        libc.syscall(314, 0, wanted, 0)
    policies = {
        "deadline": deadline,
        "rr": lambda: os.sched_setscheduler(0, os.SCHED_RR | RESET, os.sched_param(7)),
        "batch": lambda: os.sched_setscheduler(0, os.SCHED_BATCH | RESET, os.sched_param(0)),
        "other": lambda: os.sched_setscheduler(0, os.SCHED_OTHER | RESET, os.sched_param(0)),
    }
    seen = {}
    def work(name):
        refused = ""
        try:
            policies[name]()
        except PermissionError:
            refused = " refused"
        found = ctypes.create_string_buffer(48)
        while True:
            libc.syscall(315, 0, found, 48, 0)
            seen[name + refused] = found.raw.hex()
            time.sleep(0.01)
    for name in policies:
        threading.Thread(target=work, args=[name], daemon=True).start()
    while True:
        seen.clear()
        while len(seen) < len(policies):
            time.sleep(0.01)
        print(json.dumps(seen), flush=True)
"""


def test_scheduling_policies_that_criu_refuses_come_back(run):
    program = run(POLICIES)
    before = json.loads(program.fresh_line())
    assert any(name in before for name in ("other", "deadline"))
    resumed = program.resume(program.save(stop=True).manifest.info.snapshot_id)
    assert json.loads(program.fresh_line()) == before
    assert resumed.warnings == []


OWN = """
    import ctypes, json, os, threading, time
    libc = ctypes.CDLL(None)
    os.mkdir("sub")
    shown = {}
    def work():
        libc.unshare(0x200 | KINDS)
        os.chdir("sub")
        os.umask(0o77)
        while True:
            os.umask(umask := os.umask(0))
            shown["thread"] = os.path.basename(os.getcwd()), umask
            time.sleep(0.01)
    threading.Thread(target=work, daemon=True).start()
    while True:
        shown.clear()
        while not shown:
            time.sleep(0.01)
        os.umask(umask := os.umask(0o22))
        print(json.dumps([shown["thread"], os.path.basename(os.getcwd()), umask]), flush=True)
"""


def test_a_thread_keeps_its_own_working_directory_and_umask(run):
    program = run(OWN.replace("KINDS", "0"))
    before = json.loads(program.fresh_line())
    assert before == [["sub", 0o77], program.log.parent.name, 0o22]
    for _ in range(2):
        resumed = program.resume(program.save(stop=True).manifest.info.snapshot_id)
        assert json.loads(program.fresh_line()) == before
        assert resumed.warnings == []


def test_descriptors_of_one_thread_are_told(run):
    program = run(OWN.replace("KINDS", "0x400"))
    program.fresh_line()
    resumed = program.resume(program.save(stop=True).manifest.info.snapshot_id)
    program.fresh_line()
    name = f"python (process {program.tree.kernel_nspid})"
    assert resumed.warnings == [
        f"After the resume, descriptors that one thread had for itself of {name} are missing."
    ]


@pytest.mark.parametrize("is_reused", [False, True])
def test_epoll_may_watch_a_file_whose_descriptor_was_closed_but_has_a_duplicate(run, is_reused):
    program = run(f"""
        import os, select, socket, time
        end, other = socket.socketpair()
        number = end.fileno()
        epoll = select.epoll()
        epoll.register(end, select.EPOLLIN)
        duplicate = os.dup(number)
        end.close()
        assert not {is_reused} or os.open("/dev/null", os.O_RDONLY) == number
        other.send(b"x")
        while True:
            print(epoll.poll(1) == [(number, select.EPOLLIN)], flush=True)
            time.sleep(0.05)
    """)
    assert program.fresh_line() == "True"
    resumed = program.resume(program.save(stop=True).manifest.info.snapshot_id)
    assert program.fresh_line() == "True"
    assert resumed.warnings == []


def test_the_count_of_an_eventfd_may_be_large_and_its_lost_mode_is_told(run):
    program = run("""
        import os, time
        large, mode = os.eventfd(0), os.eventfd(2, os.EFD_SEMAPHORE)
        os.eventfd_write(large, (1 << 33) + 5)
        def shown(number):
            text = open(f"/proc/self/fdinfo/{number}").read()
            return int(text.split("eventfd-count:")[1].split()[0], 16)
        while True:
            print(shown(large), shown(mode), flush=True)
            time.sleep(0.05)
    """)
    before = program.fresh_line()
    assert before == f"{(1 << 33) + 5} 2"
    resumed = program.resume(program.save(stop=True).manifest.info.snapshot_id)
    assert program.fresh_line() == before
    [warning] = resumed.warnings
    assert "the way of counting (EFD_SEMAPHORE) of descriptor" in warning
