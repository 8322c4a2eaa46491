"""A program that maps memory as the CUDA driver does during a checkpoint."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from jupyter_gpuckpt.engine.tree.tree import Tree
from jupyter_gpuckpt.host import processes
from tests import smaps

# One thread waits for lengths, maps as the CUDA driver does, fills the mapping and checks it after the others have worked.
DRIVER = """
    import ctypes, json, os, signal, sys, threading, time
    if len(sys.argv) > 1:
        os.chroot(sys.argv[1])
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
    # A byte for each signal: Python calls its own handlers once for several.
    reader, writer = os.pipe()
    os.set_blocking(reader, False), os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer)
    signal.signal(signal.SIGUSR1, lambda *_: None)
    signals = []
    def received():
        try:
            signals.extend(os.read(reader, 1 << 16))
        except BlockingIOError:
            pass
        return len(signals)
    PRIVATE, ANONYMOUS, POPULATE = 2, 0x20, 0x8000
    def serve():
        print(threading.get_native_id(), flush=True)
        for line in sys.stdin:
            length, flags, extra = json.loads(line)
            address = libc.mmap(None, length, 3, flags, -1, 0)
            if address in (None, ctypes.c_void_p(-1).value):
                print(json.dumps({'errno': ctypes.get_errno()}), flush=True)
                continue
            for at in range(0, length, 4096):
                ctypes.memset(address + at, 7, 1)
            ctypes.memset(address + length - 1, 7, 1)
            child = None
            if extra == 'calls':
                for _ in range(1000):
                    os.getppid()
            if extra == 'fork':
                child = os.fork()
                if not child:
                    signal.pause()
                    os._exit(0)
            print(json.dumps({'address': address, 'child': child, 'signals': received(),
                              'last': ctypes.string_at(address + length - 1, 1)[0]}), flush=True)
    thread = threading.Thread(target=serve)
    thread.start()
    while thread.is_alive():
        thread.join(0.05)
"""
#: What the driver asks for: MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE.
CALL = 0x2 | 0x20 | 0x8000


class Driver:
    def __init__(self, process):
        self.process, self.pid = process, process.pid
        self.tid = int(process.stdout.readline())
        self.tree = Tree(self.pid, processes.start_time(self.pid), 0, 0, self.pid, self.pid, "")

    def ask(self, length, flags=CALL, extra=""):
        self.process.stdin.write(json.dumps([length, flags, extra]) + "\n")
        self.process.stdin.flush()

    def answer(self):
        return json.loads(self.process.stdout.readline())

    def map(self, length, flags=CALL, extra=""):
        self.ask(length, flags, extra)
        return self.answer()

    def mapping(self, address):
        """Return what lies at that address."""
        return next(a for a in processes.maps(self.pid) if a.start <= address < a.end)

    def flags_at(self, address):
        """Return the flags of the mapping there."""
        return smaps.flags_at(self.pid, address)


@contextlib.contextmanager
def running(*words):
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(DRIVER), *map(str, words)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            yield Driver(process)
        finally:
            process.kill()


@pytest.fixture
def running_driver():
    """Start one with words on its command line."""
    return running


@pytest.fixture
def driver():
    """One that waits."""
    with running() as program:
        yield program


@pytest.fixture
def directory():
    """Yield a folder on a tmpfs."""
    path = Path(f"/dev/shm/gpuckpt-test-{os.getpid()}")
    path.mkdir()
    yield str(path)
    shutil.rmtree(path)
