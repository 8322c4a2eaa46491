"""`python -m tests.snapshots.another_user VERB DIRECTORY [SNAPSHOT]`: suspends a program, or resumes one that anybody suspended."""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

from jupyter_gpuckpt.engine.memory.tracked_kernels import TrackedKernels
from jupyter_gpuckpt.engine.settings import EngineSettings
from jupyter_gpuckpt.engine.tree import user_namespaces
from jupyter_gpuckpt.errors import GpuCkptError
from jupyter_gpuckpt.host import criu_program, privileges, processes
from jupyter_gpuckpt.store.local import LocalStore
from tests.snapshots.conftest import Program

CODE = """
    import fcntl, json, mmap, multiprocessing, os, pty, socket, subprocess, sys, tempfile, time
    sys.stdout = open("program.log", "a")
    lock, unnamed = multiprocessing.Lock(), tempfile.TemporaryFile()
    memory = mmap.mmap(-1, 4096)
    descriptor = os.memfd_create("x")
    left, right = socket.socketpair()
    terminal, slave = pty.openpty()
    shell = subprocess.Popen(["sh"], stdin=slave, stdout=slave, stderr=slave, start_new_session=True)
    os.close(slave)
    pipe = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    def ask(question, wanted):
        os.write(terminal, question + b"\\n")
        heard = b""
        while wanted not in heard:
            heard += os.read(terminal, 1000)
    n = 0
    while True:
        n += 1
        with lock:
            unnamed.write(b"x"); unnamed.flush()
            assert os.fstat(unnamed.fileno()).st_size == n, n
        left.send(b"%d" % n)
        assert right.recv(10) == b"%d" % n
        pipe.stdin.write(b"%d\\n" % n); pipe.stdin.flush()
        assert pipe.stdout.readline() == b"%d\\n" % n
        ask(b"echo $((%d * 1000))" % n, b"%d000" % n)
        print(n, *os.getresuid(), *os.getresgid(), os.getpid(), shell.poll(), flush=True)
        time.sleep(0.01)
"""


def program(directory: Path, store: LocalStore, *, start: bool) -> Program:
    """Return the program of the directory, which is started or is to be resumed."""
    criu = criu_program.find()
    assert criu
    engine = EngineSettings(
        criu=criu,
        spill_dir=directory / f"spill-{os.geteuid()}",
        threads=2,
        user_namespace=not privileges.suffice(),
    )
    folder = directory / "program"
    if start:
        folder.mkdir()
        return Program(CODE, folder, engine, store)
    found = Program.__new__(Program)
    found.engine, found.store, found._directory = engine, store, folder
    found.tracked = TrackedKernels()
    found.log, found._trees = folder / "program.log", []
    found._exit_path = lambda: directory / f"exit-{os.geteuid()}"  # type: ignore[method-assign]
    return found


def main(verb: str, directory: Path, snapshot_id: str = "") -> None:
    """Do it; what goes wrong is raised."""
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
    os.umask(0)
    with LocalStore(directory / "store") as store:
        one = program(directory, store, start=verb == "suspend")
        if verb == "suspend":
            one.lines(more_than=3)
            manifest = one.save(stop=True).manifest
            (directory / "spec").write_text(repr(one.spec.env.get("HOME")))
            print(manifest.info.snapshot_id)
            return
        before = one.lines()
        manifest = store.manifest(snapshot_id)
        one.spec = manifest.launch
        for _ in range(2):
            one.resume(snapshot_id)
            assert user_namespaces.has_own(one.tree.init_pid)
            assert processes.uid(one.tree.kernel_pid) == os.geteuid()
            assert processes.status(one.tree.kernel_pid)["CapEff"] == "0" * 16
            after = one.lines(more_than=len(before) + 2)
            assert after[: len(before)] == before
            last, first = before[-1].split(), after[len(before)].split()
            assert int(first[0]) == int(last[0]) + 1
            assert first[1:] == last[1:], (first, last)  # its ids, as it sees them
            saved = one.save(stop=True).manifest
            assert (saved.uid, saved.gid) == (manifest.uid, manifest.gid)
            snapshot_id, before = saved.info.snapshot_id, one.lines()


if __name__ == "__main__":
    try:
        main(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:])
    except GpuCkptError as error:
        sys.exit(f"{error.message} {error.hint}\n{error.details}")
