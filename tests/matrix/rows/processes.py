"""Children of the kernel: how they are started, how they live and how they end."""

from jupyter_gpuckpt.host import privileges
from tests.matrix.row import Row

CHAPTER = "Processes"

POOL = """
import {module} as pools
def square(n):
    return n * n
"""

ROWS = [
    Row(
        "zombie",
        "A child that has ended and that nobody has waited for",
        """
import subprocess
child = subprocess.Popen(["sh", "-c", "exit 3"])
def state():
    return open(f"/proc/{child.pid}/stat").read().rsplit(")", 1)[1].split()[0]
while state() != "Z":
    pass
""",
        """
assert state() == "Z"
""",
        quick=True,
    ),
    Row(
        "orphan",
        "A daemon: a child of a child that has ended, in a session of its own",
        """
import os, signal, subprocess, time
code = "import os, time\\nif os.fork(): os._exit(0)\\nos.setsid()\\nopen('daemon.pid', 'w').write(str(os.getpid()))\\n"
code += "while True: open('beat', 'w').write(str(time.monotonic())); time.sleep(0.01)"
subprocess.run(["python3", "-c", code])
def beat():
    while True:
        try:
            return float(open("beat").read())
        except (ValueError, FileNotFoundError):
            time.sleep(0.001)
beat()
""",
        """
before = beat()
deadline = time.monotonic() + 120
while beat() == before:
    assert time.monotonic() < deadline
os.kill(int(open("daemon.pid").read()), 0)
""",
    ),
    Row(
        "tree",
        "A shell with a pipeline of children",
        """
import subprocess
child = subprocess.Popen("while read x; do echo $x | tr a-z A-Z; done", shell=True, text=True,
                         stdin=subprocess.PIPE, stdout=subprocess.PIPE)
""",
        """
child.stdin.write("word\\n")
child.stdin.flush()
assert child.stdout.readline() == "WORD\\n"
""",
    ),
    Row(
        "stopped-child",
        "A child that was stopped (SIGSTOP) and goes on later",
        """
import os, signal, subprocess, time
child = subprocess.Popen(["sleep", "1000"])
def state():
    return open(f"/proc/{child.pid}/stat").read().rsplit(")", 1)[1].split()[0]
def wait(for_what):
    deadline = time.monotonic() + 120
    while state() not in for_what:
        assert time.monotonic() < deadline, state()
child.send_signal(signal.SIGSTOP)
wait("T")
""",
        """
assert state() == "T"
child.send_signal(signal.SIGCONT)
wait("S")
child.send_signal(signal.SIGSTOP)
wait("T")
""",
    ),
    Row(
        "pty",
        "A terminal (pty) with bash in it",
        """
import os, pty, select, subprocess
master, slave = pty.openpty()
shell = subprocess.Popen(["bash", "--norc", "-i"], stdin=slave, stdout=slave, stderr=slave, start_new_session=True)
os.close(slave)
def read_until(text):
    got = b""
    while text not in got:
        assert select.select([master], [], [], 100)[0], got
        got += os.read(master, 4096)
    return got
os.write(master, b"n=0; echo rea''dy\\n")
read_until(b"ready")
n = 0
""",
        """
n += 1
os.write(master, b"n=$((n + 1)); echo result=$n.\\n")
read_until(b"result=%d." % n)
""",
    ),
    Row(
        "pexpect",
        "pexpect with a Python prompt",
        """
import pexpect, sys
child = pexpect.spawn(sys.executable, ["-q"], encoding="utf-8", env={"TERM": "dumb", "PATH": "/usr/bin"})
child.expect(">>> ")
child.sendline("x = 20")
child.expect(">>> ")
""",
        """
child.sendline("print(x * 2 + 2)")
child.expect("42")
child.expect(">>> ")
""",
        needs=("pexpect",),
    ),
    *(
        Row(
            f"pool-{method}",
            f"multiprocessing.Pool ({method})",
            f"""
import multiprocessing, operator
pool = multiprocessing.get_context("{method}").Pool(2)
""",
            """
assert pool.starmap(operator.mul, [(n, n) for n in range(100)]) == [n * n for n in range(100)]
""",
            quick=method == "fork",
            patience=3 * 60,
        )
        for method in ("fork", "spawn", "forkserver")
    ),
    Row(
        "manager",
        "multiprocessing.Manager with a shared dictionary",
        """
import multiprocessing
manager = multiprocessing.get_context("fork").Manager()
d = manager.dict(n=0)
n = 0
""",
        """
assert d["n"] == n
n += 1
d["n"] = n
""",
    ),
    Row(
        "queue-process",
        "multiprocessing.Process with queues in both directions",
        """
import multiprocessing
context = multiprocessing.get_context("fork")
questions, answers = context.Queue(), context.Queue()
def serve():
    while True:
        answers.put(questions.get() + 1)
worker = context.Process(target=serve, daemon=True)
worker.start()
""",
        """
questions.put(1)
assert answers.get(timeout=100) == 2
""",
    ),
    Row(
        "process-pool-executor",
        "concurrent.futures.ProcessPoolExecutor",
        """
import concurrent.futures, math, multiprocessing
pool = concurrent.futures.ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("fork"))
""",
        """
assert list(pool.map(math.factorial, range(10))) == [math.factorial(n) for n in range(10)]
""",
    ),
    Row(
        "loky",
        "joblib with its loky workers",
        """
import joblib, math
parallel = joblib.Parallel(n_jobs=2)
""",
        """
assert parallel(joblib.delayed(math.sqrt)(n * n) for n in range(20)) == list(range(20))
""",
        needs=("joblib",),
        patience=3 * 60,
    ),
    Row(
        "asyncio-subprocess",
        "A subprocess of asyncio, and tasks in the kernel's event loop",
        """
import asyncio
child = await asyncio.create_subprocess_exec("cat", stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE)
ticks = 0
async def tick():
    global ticks
    while True:
        ticks += 1
        await asyncio.sleep(0.005)
task = asyncio.create_task(tick())
""",
        """
before = ticks
child.stdin.write(b"line\\n")
assert await asyncio.wait_for(child.stdout.readline(), 100) == b"line\\n"
while ticks == before:
    await asyncio.sleep(0.005)
assert not task.done()
""",
        quick=True,
    ),
    Row(
        "affinity",
        "The processors that a process may use (sched_setaffinity)",
        """
import os, subprocess, threading
os.sched_setaffinity(0, {1})
child = subprocess.Popen(["sleep", "1000"])
os.sched_setaffinity(0, {0})
ready, release = threading.Event(), threading.Event()
def limited():
    os.sched_setaffinity(0, {1})
    ready.set()
    release.wait()
thread = threading.Thread(target=limited, daemon=True)
thread.start()
ready.wait()
""",
        """
assert os.sched_getaffinity(0) == {0}
assert os.sched_getaffinity(child.pid) == {1}
assert os.sched_getaffinity(thread.native_id) == {1}
""",
    ),
    Row(
        "priority",
        "Niceness and scheduling policy of a child",
        """
import os, subprocess
child = subprocess.Popen(["nice", "-n", "7", "sleep", "1000"])
while os.getpriority(os.PRIO_PROCESS, child.pid) != 7:
    pass
os.sched_setscheduler(child.pid, os.SCHED_BATCH, os.sched_param(0))
""",
        """
assert os.getpriority(os.PRIO_PROCESS, child.pid) == 7
assert os.sched_getscheduler(child.pid) == os.SCHED_BATCH
""",
    ),
    Row(
        "setuid-child",
        "A child that is another user",
        """
import subprocess
child = subprocess.Popen(["sleep", "1000"], user=65534, group=65534, extra_groups=[])
""",
        """
assert f"Uid:\\t65534\\t65534" in open(f"/proc/{child.pid}/status").read()
assert child.poll() is None
""",
        refused="" if "SYS_RESOURCE" in privileges.effective() else "another user",
        rights=True,
    ),
    Row(
        "user-namespace",
        "A child in a user namespace of its own (a sandbox, a rootless container)",
        """
import subprocess
child = subprocess.Popen(["unshare", "--user", "sleep", "1000"])
import os
while os.readlink(f"/proc/{child.pid}/ns/user") == os.readlink("/proc/self/ns/user"):
    pass
""",
        """
assert child.poll() is None
""",
        refused="namespace",
        quick=True,
    ),
    Row(
        "mount-namespace",
        "A child in a mount namespace of its own",
        """
import os, subprocess
child = subprocess.Popen(["unshare", "--mount", "sleep", "1000"])
while os.readlink(f"/proc/{child.pid}/ns/mnt") == os.readlink("/proc/self/ns/mnt"):
    pass
""",
        """
assert child.poll() is None
""",
        refused="namespace",
        quick=True,
        rights=True,
    ),
    Row(
        "pid-namespace",
        "A child in a PID namespace of its own",
        """
import os, subprocess
child = subprocess.Popen(["unshare", "--pid", "--fork", "sleep", "1000"])
""",
        """
assert child.poll() is None
""",
        refused="namespace",
        rights=True,
    ),
    Row(
        "network-namespace",
        "A child in a network namespace of its own",
        """
import os, subprocess
child = subprocess.Popen(["unshare", "--net", "sleep", "1000"])
while os.readlink(f"/proc/{child.pid}/ns/net") == os.readlink("/proc/self/ns/net"):
    pass
""",
        """
assert child.poll() is None
""",
        refused="namespace",
        rights=True,
    ),
    Row(
        "landlock-child",
        "A child in a Landlock sandbox",
        """
import subprocess, sys
code = '''
import ctypes, struct, time
libc = ctypes.CDLL(None, use_errno=True)
ruleset = libc.syscall(444, struct.pack("QQ", 1 << 4, 0), 16, 0)
assert ruleset >= 0
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.syscall(446, ruleset, 0) == 0
print("ready", flush=True)
time.sleep(1000)
'''
child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
assert child.stdout.readline() == b"ready\\n"
""",
        """
assert child.poll() is None
""",
        refused="sandbox",
    ),
    Row(
        "seccomp-child",
        "A child with a seccomp filter of its own (a sandboxed browser)",
        """
import subprocess, sys
code = '''
import ctypes, struct, time
libc = ctypes.CDLL(None, use_errno=True)
rule = ctypes.create_string_buffer(struct.pack("=HBBI", 0x06, 0, 0, 0x7FFF0000))
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.prctl(22, 2, struct.pack("HxxxxxxP", 1, ctypes.addressof(rule))) == 0
print("ready", flush=True)
time.sleep(1000)
'''
child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
assert child.stdout.readline() == b"ready\\n"
""",
        """
assert child.poll() is None
""",
        refused="sandbox",
    ),
    Row(
        "traced-child",
        "A child that a debugger traces (gdb, strace)",
        """
import ctypes, subprocess, sys
code = '''
import ctypes, os, time
child = os.fork()
if not child:
    time.sleep(1000)
assert ctypes.CDLL(None).ptrace(0x4206, child, None, None) == 0  # PTRACE_SEIZE
print("ready", flush=True)
time.sleep(1000)
'''
child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
assert child.stdout.readline() == b"ready\\n"
""",
        """
assert child.poll() is None
""",
        refused="traced|debugger",
    ),
    Row(
        "attributes",
        "I/O priority, timer slack, personality, filter of core dumps, OOM score, nice value of the session",
        """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
def attributes():
    files = ("coredump_filter", "oom_score_adj", "autogroup")
    shown = [open(f"/proc/self/{name}").read().split()[-1] for name in files]
    return [*shown, libc.syscall(252, 1, 0), libc.prctl(30, 0, 0, 0, 0), libc.personality(0xffffffff)]
libc.syscall(251, 1, 0, 3 << 13)
libc.prctl(29, 123456, 0, 0, 0)
libc.personality(0x0040000)
for name, value in ("coredump_filter", "0x7f"), ("oom_score_adj", "321"), ("autogroup", "5"):
    with open(f"/proc/self/{name}", "w") as file:
        file.write(value)
expected = attributes()
assert expected[1:3] == ["321", "5"]
""",
        """
assert attributes() == expected, (attributes(), expected)
""",
    ),
    Row(
        "advice",
        "What madvise sets for memory: not in forks, wiped in forks, not in core dumps, huge pages, order of reading",
        """
import ctypes, mmap
ADVICE = {10: "dc", 18: "wf", 16: "dd", 14: "hg", 15: "nh", 1: "rr", 2: "sr", 12: "mg"}
areas = [mmap.mmap(-1, 4 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) for _ in ADVICE]
starts = {}
for area, advice in zip(areas, ADVICE):
    area.madvise(advice)
    area[0] = 1
    starts[ctypes.addressof(ctypes.c_char.from_buffer(area))] = ADVICE[advice]
def shown():
    flags, start, end = {}, 0, 0
    for line in open("/proc/self/smaps"):
        first = line.split()[0]
        if "-" in first:
            start, end = (int(part, 16) for part in first.split("-"))
        elif first == "VmFlags:":
            inside = [address for address in starts if start <= address < end]
            flags.update((address, line.split()[1:]) for address in inside)
    return flags
""",
        """
for address, flags in shown().items():
    assert starts[address] in flags, (starts[address], flags)
""",
    ),
    Row(
        "memory-kinds",
        "Memory that is locked when it is used (mlock2), sealed (mseal) or has a policy of its own (mbind)",
        """
import ctypes, mmap, struct
libc = ctypes.CDLL(None, use_errno=True)
area = mmap.mmap(-1, 3 * 4096, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
area[:] = b"x" * len(area)
start = ctypes.c_long(ctypes.addressof(ctypes.c_char.from_buffer(area)))
libc.syscall(325, start, 4096, 1)
libc.syscall(237, ctypes.c_long(start.value + 4096), 4096, 1, struct.pack("Q", 1), 64, 0)
libc.syscall(462, ctypes.c_long(start.value + 8192), 4096, 0)
""",
        """
assert area[:] == b"x" * len(area)
assert any("lf" in line.split() for line in open("/proc/self/smaps") if line.startswith("VmFlags"))
""",
        exception=(
            "sealed memory is no longer sealed, and the policy of an area is that of its thread again"
        ),
    ),
    Row(
        "scheduling-reset",
        "A scheduling policy that forked processes do not inherit",
        """
import os
os.sched_setscheduler(0, os.SCHED_BATCH | os.SCHED_RESET_ON_FORK, os.sched_param(0))
""",
        """
assert os.sched_getscheduler(0) == os.SCHED_BATCH | os.SCHED_RESET_ON_FORK
""",
    ),
    Row(
        "keyring",
        "A key in the keyring of the process",
        """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
assert libc.syscall(248, b"user", b"name", b"secret", 6, -2) > 0
""",
        """
libc.syscall(250, 0, -2, 0)
""",
        exception="the key is not in the snapshot, because it is a secret; a warning of the resume says so",
        warned="keys of the process keyring",
    ),
    Row(
        "pty-ended",
        "Output of a program in a terminal that has ended, not read yet (pexpect)",
        """
import os, pty
def begin():
    global main
    pid, main = pty.fork()
    if not pid:
        os.write(1, b"last\\nwords\\n")
        os._exit(0)
    os.waitpid(pid, 0)
begin()
""",
        """
found = b""
try:
    while True:
        found += os.read(main, 100)
except OSError as error:
    assert error.errno == 5, error
assert found == b"last\\r\\nwords\\r\\n", found
os.close(main)
begin()
""",
    ),
    Row(
        "pty-unread",
        "Output and input that wait in a terminal",
        """
import os
main, other = os.openpty()
def write():
    os.write(other, b"one\\ntwo\\n")
    os.write(main, b"typed\\r")
write()
""",
        """
assert os.read(main, 100) == b"one\\r\\ntwo\\r\\ntyped\\r\\n"
assert os.read(other, 100) == b"typed\\n"
write()
""",
    ),
]
