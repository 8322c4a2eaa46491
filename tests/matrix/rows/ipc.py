"""Pipes, sockets inside a machine, shared memory and other descriptors."""

from tests.matrix.row import Row

CHAPTER = "Pipes, shared memory and other descriptors"
ROWS = [
    Row(
        "pipe-data",
        "A pipe with bytes in it, of a size that was set",
        """
import fcntl, os
r, w = os.pipe()
fcntl.fcntl(w, 1031, 1 << 19)  # F_SETPIPE_SZ
data = os.urandom(300_000)
os.write(w, data)
""",
        """
got = b""
while len(got) < len(data):
    got += os.read(r, 1 << 20)
assert got == data and fcntl.fcntl(w, 1032) == 1 << 19
os.write(w, data)
""",
    ),
    Row(
        "pipe-child",
        "Pipes to and from a child that answers (bc, cat)",
        """
import subprocess
child = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
n = 0
""",
        """
n += 1
child.stdin.write(b"%d\\n" % n)
child.stdin.flush()
assert int(child.stdout.readline()) == n
""",
    ),
    Row(
        "socketpair",
        "A pair of unix sockets with bytes in both directions",
        """
import socket
a, b = socket.socketpair()
a.sendall(b"to b")
b.sendall(b"to a")
""",
        """
assert a.recv(4) == b"to a" and b.recv(4) == b"to b"
a.sendall(b"to b")
b.sendall(b"to a")
""",
    ),
    Row(
        "socketpair-datagrams",
        "A pair of datagram sockets with messages, whose borders stay",
        """
import socket
a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
for text in (b"1", b"22", b"333"):
    a.send(text)
""",
        """
assert [b.recv(100) for _ in range(3)] == [b"1", b"22", b"333"]
for text in (b"1", b"22", b"333"):
    a.send(text)
""",
    ),
    Row(
        "unix-listener",
        "A unix socket that listens, with a connection inside the kernel",
        """
import socket
server = socket.socket(socket.AF_UNIX)
server.bind("socket")
server.listen()
client = socket.socket(socket.AF_UNIX)
client.connect("socket")
connection, _ = server.accept()
""",
        """
client.sendall(b"x")
assert connection.recv(1) == b"x"
another = socket.socket(socket.AF_UNIX)
another.connect("socket")
server.accept()[0].close()
another.close()
""",
        exception="both ends of a connection no longer show the listener's name (getsockname, getpeername)",
    ),
    Row(
        "eventfd",
        "An eventfd with a count, in an epoll set",
        """
import os, select
e = os.eventfd(3)
p = select.epoll()
p.register(e, select.EPOLLIN)
""",
        """
assert p.poll(5) == [(e, select.EPOLLIN)]
assert os.eventfd_read(e) == 3
assert p.poll(0) == []
os.eventfd_write(e, 3)
""",
    ),
    Row(
        "signalfd",
        "A signalfd with a signal that waits",
        """
import ctypes, os, signal, struct
libc = ctypes.CDLL(None)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
mask = struct.pack("Q", 1 << (signal.SIGUSR1 - 1))
d = libc.signalfd(-1, mask, 0)
signal.pthread_kill(__import__("threading").get_ident(), signal.SIGUSR1)
""",
        """
assert struct.unpack_from("I", os.read(d, 128))[0] == signal.SIGUSR1
signal.pthread_kill(__import__("threading").get_ident(), signal.SIGUSR1)
""",
    ),
    Row(
        "pidfd",
        "A pidfd of a child",
        """
import os, select, subprocess
child = subprocess.Popen(["sleep", "1000"])
d = os.pidfd_open(child.pid)
""",
        """
assert select.select([d], [], [], 0)[0] == []
assert open(f"/proc/self/fdinfo/{d}").read().split("Pid:")[1].split()[0] == str(child.pid)
""",
    ),
    Row(
        "posix-shm",
        "POSIX shared memory (multiprocessing.shared_memory)",
        """
from multiprocessing import shared_memory
block = shared_memory.SharedMemory(create=True, size=1 << 20)
n = 0
""",
        """
assert block.buf[0] == n
n += 1
block.buf[0] = n
again = shared_memory.SharedMemory(block.name)
assert again.buf[0] == n
again.close()
""",
    ),
    Row(
        "posix-semaphore",
        "A named semaphore, locked (multiprocessing.Lock)",
        """
import multiprocessing
lock = multiprocessing.get_context("fork").Lock()
lock.acquire()
""",
        """
assert not lock.acquire(block=False)
lock.release()
assert lock.acquire(block=False)
""",
    ),
    Row(
        "sysv-shm",
        "System V shared memory, attached",
        """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
libc.shmat.restype = ctypes.c_void_p
segment = libc.shmget(0, 4096, 0o1600)
address = libc.shmat(segment, None, 0)
libc.shmctl(segment, 0, None)  # removed when its last user ends
ctypes.memset(address, 7, 4096)
""",
        """
assert ctypes.string_at(address, 4096) == bytes([7]) * 4096
""",
        refused="System V shared memory",
        quick=True,
    ),
    Row(
        "netlink",
        "A netlink socket",
        """
import socket
s = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
s.bind((0, 0))
""",
        """
import struct
s.send(struct.pack("IHHIIB15x", 32, 18, 0x301, 1, 0, 0))  # RTM_GETLINK
assert s.recv(65536)
while s.recv(65536)[4:6] != b"\\x03\\x00":
    pass
""",
    ),
    Row(
        "packet-socket",
        "A packet socket (sniffers, scapy)",
        """
import socket
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
""",
        """
assert s.fileno() >= 0
""",
        rights=True,
    ),
    Row(
        "userfaultfd",
        "A userfaultfd",
        """
import ctypes
d = ctypes.CDLL(None, use_errno=True).syscall(323, 0o2000000 | 1)
assert d >= 0
""",
        """
import os
assert os.readlink(f"/proc/self/fd/{d}") == "anon_inode:[userfaultfd]"
""",
        refused="userfaultfd",
        quick=True,
    ),
    Row(
        "perf-event",
        "A performance counter (perf_event_open)",
        """
import ctypes, struct
attributes = ctypes.create_string_buffer(struct.pack("IIQQQQQ", 1, 112, 0, 0, 0, 0, 0), 112)
d = ctypes.CDLL(None, use_errno=True).syscall(298, attributes, 0, -1, -1, 8)
assert d >= 0, ctypes.get_errno()
""",
        """
import os
assert len(os.read(d, 8)) == 8
""",
        refused="performance counter",
        rights=True,
    ),
    Row(
        "fanotify",
        "fanotify",
        """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
d = libc.fanotify_init(0, 0)
assert d >= 0, ctypes.get_errno()
""",
        """
import os
assert "fanotify" in os.readlink(f"/proc/self/fd/{d}")
""",
        rights=True,
    ),
    Row(
        "bpf-map",
        "A BPF map",
        """
import ctypes, struct
libc = ctypes.CDLL(None, use_errno=True)
attributes = ctypes.create_string_buffer(struct.pack("IIII", 2, 4, 8, 4), 120)
d = libc.syscall(321, 0, attributes, 120)
assert d >= 0, ctypes.get_errno()
""",
        """
import os
assert "bpf-map" in os.readlink(f"/proc/self/fd/{d}")
""",
        refused="a BPF map",
        rights=True,
    ),
    Row(
        "message-queue",
        "A POSIX message queue",
        """
import ctypes
libc = ctypes.CDLL("librt.so.1", use_errno=True)
q = libc.mq_open(b"/gpuckpt-row", 0o102, 0o600, None)
assert q >= 0, ctypes.get_errno()
libc.mq_unlink(b"/gpuckpt-row")
""",
        """
import os
assert os.readlink(f"/proc/self/fd/{q}").startswith("/gpuckpt-row")
""",
        refused="message queue",
    ),
    Row(
        "io-uring",
        "io_uring: programs are told that there is none, and use epoll",
        """
import ctypes, errno
libc = ctypes.CDLL(None, use_errno=True)
""",
        """
assert libc.syscall(425, 4, ctypes.create_string_buffer(120)) == -1
assert ctypes.get_errno() == errno.ENOSYS
""",
    ),
]
