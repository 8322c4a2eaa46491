"""Things that CRIU cannot save, held by real programs: the refusal names each in users' words, and the program runs on."""

from __future__ import annotations

import pytest

from jupyter_gpuckpt.errors import FreezeFailed
from tests.snapshots.test_failing_saves import assert_runs_on

#: A program prints `absent` where this machine, or a user without rights, has no such thing.
PROGRAM = """
    import ctypes, fcntl, mmap, os, socket, struct, sys, threading, time
    libc = ctypes.CDLL(None, use_errno=True)
    def made(result):
        if result < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        return result
    try:
        {begin}
    except (OSError, AttributeError) as error:
        print("absent", error, flush=True)
        time.sleep(1000)
    n = 0
    while True:
        n += 1
        print(n, flush=True)
        time.sleep(0.01)
"""

LISTENER = "listener = socket.socket(socket.AF_UNIX); listener.bind('socket'); listener.listen(); "
LISTENER += "client = socket.socket(socket.AF_UNIX); client.connect('socket'); client.sendall(b'x')"

KINDS = {
    "secret memory": ("held = made(libc.syscall(447, 0))", r"secret memory \(memfd_secret\)"),
    "mapped secret memory": (
        "held = made(libc.syscall(447, 0)); os.ftruncate(held, 4096); memory = mmap.mmap(held, 4096); memory[0] = 1",
        "secret memory",
    ),
    "data on a waiting connection": (LISTENER, "unix socket .* before it was accepted"),
    "a closed waiting connection": (
        f"{LISTENER}; client.close()",
        "unix socket .* before it was accepted",
    ),
    "vsock": (
        "held = socket.socket(40, socket.SOCK_STREAM)",
        r"virtual machine's host \(AF_VSOCK\)",
    ),
    "an unread answer": (
        "held = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0); held.bind((0, 0)); "
        "held.send(struct.pack('=IHHIIB3x', 20, 18, 0x301, 1, 0, 0))",
        "netlink socket .* messages that were not read",
    ),
    "a main thread that has ended": (
        "child = os.fork() or threading.Thread(target=time.sleep, args=(1000,)).start() or libc.syscall(60, 0); time.sleep(0.3)",
        "main thread of a process of the kernel has ended",
    ),
    "a shared working directory": (
        "child = libc.syscall(56, 0x200 | 17, 0, 0, 0, 0) or time.sleep(1000)",
        "share a working directory",
    ),
    "tun": (
        "held = os.open('/dev/net/tun', os.O_RDWR)",
        r"network device of its own .*/dev/net/tun",
    ),
    "mptcp": ("held = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262)", "with MPTCP"),
    "an alarm clock": ("held = made(libc.timerfd_create(9, 0))", "timer that wakes the machine"),
    "kvm": ("held = os.open('/dev/kvm', os.O_RDWR)", "has /dev/kvm open"),
    "a loop device": (
        "held = os.open('/dev/loop-control', os.O_RDWR)",
        "has /dev/loop-control open",
    ),
    "perf": (
        "held = made(libc.syscall(298, struct.pack('IIQ', 1, 128, 0) + bytes(112), 0, -1, -1, 0))",
        r"performance counter \(perf\)",
    ),
    "a landlock ruleset": (
        "held = made(libc.syscall(444, struct.pack('QQ', 16, 0), 16, 0))",
        "a Landlock ruleset",
    ),
    "the name of a pipe": (
        "os.mkfifo('pipe'); held = os.open('pipe', os.O_PATH)",
        r"name of a pipe or unix socket \(O_PATH\)",
    ),
    "the name of a pipe without one": (
        "ends = os.pipe(); held = os.open(f'/proc/self/fd/{ends[0]}', os.O_PATH)",
        r"name of a pipe or terminal \(O_PATH\)",
    ),
    "the name of a terminal": (
        "ends = os.openpty(); held = os.open(os.ttyname(ends[1]), os.O_PATH)",
        r"name of a pipe or terminal \(O_PATH\)",
    ),
    "the name of a socket": (
        "socket.socket(socket.AF_UNIX).bind('socket'); held = os.open('socket', os.O_PATH)",
        r"name of a pipe or unix socket \(O_PATH\)",
    ),
    "a BPF program at a socket": (
        "code = ctypes.create_string_buffer(struct.pack('BBhiBBhi', 0xb7, 0, 0, -1, 0x95, 0, 0, 0)); "
        "words = ctypes.create_string_buffer(b'GPL'); "
        "asked = struct.pack('IIQQ', 1, 2, ctypes.addressof(code), ctypes.addressof(words)) + bytes(100); "
        "program = made(libc.syscall(321, 5, asked, 48)); held = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); "
        "held.setsockopt(socket.SOL_SOCKET, 50, program); os.close(program)",
        "BPF program attached",
    ),
    "a disk": ("held = os.open('/dev/loop0', os.O_RDONLY)", "has /dev/loop0 open"),
    "fsopen": ("held = made(libc.syscall(430, b'tmpfs', 0))", r"being mounted \(fsopen\)"),
}


@pytest.mark.parametrize(("begin", "words"), KINDS.values(), ids=KINDS)
def test_what_cannot_be_saved_is_named_and_the_program_runs_on(run, begin: str, words: str) -> None:
    program = run(PROGRAM.format(begin=begin))
    first = program.lines()[0]
    if first.startswith("absent"):
        pytest.skip(f"not here: {first}")
    with pytest.raises(FreezeFailed, match=words) as caught:
        program.save(stop=True)
    assert "report" not in caught.value.hint
    assert "ended with status" not in caught.value.message
    assert_runs_on(program)
