"""x"""

import json

ATTRIBUTES = """
    import ctypes, fcntl, json, os, select, signal, socket, struct, sys, termios, threading, time
    libc = ctypes.CDLL(None, use_errno=True)
    LO = socket.inet_aton("127.0.0.1")
    datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    datagrams.bind(("127.0.0.1", 0))
    six = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
    listener = socket.create_server(("127.0.0.1", 0))
    OPTIONS = {
        datagrams: [(0, 10, 2), (0, 11, 1), (0, 33, 7), (0, 34, 0), (0, 49, 0), (1, 29, 1), (1, 40, 1), (1, 46, 50), (17, 103, 1200), (17, 104, 1)],
        six: [(41, 18, 7), (41, 19, 0), (41, 25, 1), (41, 49, 1), (41, 66, 1), (41, 67, 32)],
        listener: [(6, 7, 3), (6, 9, 7), (6, 18, 5000), (6, 23, 9), (6, 25, 20000), (6, 2, 900)],
    }
    for end, options in OPTIONS.items():
        for level, name, value in options:
            end.setsockopt(level, name, value)
    listener.setsockopt(6, 13, b"reno")
    datagrams.setsockopt(0, socket.IP_ADD_MEMBERSHIP, socket.inet_aton("239.1.2.3") + LO)
    datagrams.setsockopt(0, socket.IP_MULTICAST_IF, LO)
    def prctl(option, *rest):
        return libc.prctl(option, *map(ctypes.c_ulong, rest), *[ctypes.c_ulong(0)] * (4 - len(rest)))
    libc.syscall(251, 1, 0, 3 << 13)
    prctl(29, 123456)
    prctl(33, 1, 1)
    prctl(67, 1)
    prctl(1, signal.SIGUSR1)
    prctl(38, 1)
    libc.personality(0x0040000)
    libc.syscall(238, 1, struct.pack("Q", 1), 64)
    open("/proc/self/coredump_filter", "w").write("0x7f")
    open("/proc/self/oom_score_adj", "w").write("321")
    open("/proc/self/autogroup", "w").write("5")
    os.setpriority(os.PRIO_PROCESS, 0, 3)
    os.umask(0o27)
    signal.signal(signal.SIGTRAP, lambda *_: None)
    timer = libc.timerfd_create(0, 0)
    at = time.time() + 10000
    libc.timerfd_settime(timer, 3, struct.pack("4q", 0, 0, int(at), 0), None)
    read_end, write_end = os.pipe()
    fcntl.fcntl(write_end, 1031, 1 << 17)
    fcntl.fcntl(read_end, 8, os.getpid()), fcntl.fcntl(read_end, 10, signal.SIGUSR2)
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
        return round(time.time() + seconds + nanoseconds / 1e9 - at, 1)
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
        found = {f"option {level} {name}": end.getsockopt(level, name) for end, options in OPTIONS.items() for level, name, _ in options}
        out = ctypes.c_int()
        libc.prctl(2, ctypes.byref(out))
        found |= {"congestion": listener.getsockopt(6, 13, 16).decode(), "membership": membership(),
            "interface": datagrams.getsockopt(0, socket.IP_MULTICAST_IF),
            "ioprio": libc.syscall(252, 1, 0), "slack": prctl(30), "mce": prctl(34), "merge": prctl(68), "death": out.value,
            "personality": libc.personality(0xffffffff), "thread": seen["thread"], "core": read("coredump_filter"), "oom": read("oom_score_adj"),
            "autogroup": read("autogroup").split()[-1], "nice": os.getpriority(0, 0),
            "trap": signal.getsignal(signal.SIGTRAP) is not None, "signals": [l for l in read("status").splitlines() if l.startswith(("SigIgn", "SigCgt", "NoNew"))],
            "timer": left(), "pipe": fcntl.fcntl(write_end, 1032), "owner": fcntl.fcntl(read_end, 9), "sig": fcntl.fcntl(read_end, 11)}
        return found
    while True:
        print(json.dumps(all_of_it()), flush=True)
        time.sleep(0.02)
"""


def test_plain(run):
    program = run(ATTRIBUTES)
    before = json.loads(program.fresh_line())
    s = program.save()
    assert json.loads(program.fresh_line()) == before
    s = program.save(stop=True)
    r = program.resume(s.manifest.info.snapshot_id)
    print(*r.warnings, sep="\n")
    print([x.length for x in s.manifest.streams if x.name == "audit"])
    after = json.loads(program.fresh_line())
    print({k: (v, after[k]) for k, v in before.items() if v != after[k]})
    assert 0


def test_terminals(run):
    program = run(TERMINALS)
    program.fresh_line()
    for stop in (False, True):
        s = program.save(stop=stop)
    r = program.resume(s.manifest.info.snapshot_id)
    print(r.warnings)
    (program._directory / "go").touch()
    program.lines(more_than=len(program.lines())+2)
    print(program.lines()[-8:])
    assert 0
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
    print(json.dumps([read(x) for x in (ended, silent, empty, main)]), flush=True)
    os.write(main, b"\\r")
    print(json.dumps([read(x) for x in (other, main, raw, end)]), flush=True)
    time.sleep(100)
"""
