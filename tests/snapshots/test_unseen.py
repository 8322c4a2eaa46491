"""What user code sees of a save, a suspend and a resume: nothing."""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import time

from jupyter_gpuckpt.engine.tree import launch
from jupyter_gpuckpt.host import processes
from jupyter_gpuckpt.wire.progress import Progress, ProgressRecord
from tests.conftest import wait_for

#: An interactive bash on a terminal of its own, with a job in the foreground. What the terminal shows goes to the log.
SHELL = r"""
    import os, pty
    pid, terminal = pty.fork()
    if pid == 0:
        os.execvpe("bash", ["bash", "--norc", "-i"], {"PS1": "", "PATH": os.environ["PATH"], "TERM": "dumb"})
    os.write(terminal, b"stty -echo; sleep 4; echo rc=$?\n")
    print("begun", flush=True)
    while True:
        try:
            text = os.read(terminal, 4096)
        except OSError as error:
            print("closed", error, flush=True)
            break
        for line in text.decode().splitlines():
            print("terminal:", line, flush=True)
"""

#: A parent that hears of everything that becomes of its children.
PARENT = """
    import os, signal, subprocess, time
    told = []
    signal.signal(signal.SIGCHLD, lambda *_: None)
    child = subprocess.Popen(["sleep", "1000"])
    while True:
        pid, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED | os.WCONTINUED)
        if pid and not os.WIFCONTINUED(status):
            told.append((pid, status))
        print(len(told), flush=True)
        time.sleep(0.01)
"""


def names(program) -> set[str]:
    return {processes.name(pid) for pid in launch.pids(program.tree)}


def ended(program) -> bool:
    return any(line.startswith("terminal: rc=") for line in program.lines())


def test_a_shell_with_a_job_in_the_foreground_says_nothing_of_it(run) -> None:
    program = run(SHELL)
    program.lines()
    wait_for(lambda: "sleep" in names(program) or ended(program))  # the job runs
    program.save()
    saved = program.save(stop=True)
    program.resume(saved.manifest.info.snapshot_id)
    wait_for(lambda: ended(program))
    said = program.lines()
    assert "terminal: rc=0" in said
    assert not any("Stopped" in line or "closed" in line for line in said)


def test_a_parent_is_not_told_of_stopped_or_ended_children(run) -> None:
    program = run(PARENT)
    program.fresh_line()
    for _ in range(3):
        program.save()
        assert program.fresh_line() == "0"
    saved = program.save(stop=True)
    count = len(program.lines())
    program.resume(saved.manifest.info.snapshot_id)
    assert set(program.lines(more_than=count + 5)) == {"0"}


def test_pipes_locks_and_ports_are_free_when_the_program_closes_them_while_a_save_is_stored(
    run, tmp_path
) -> None:
    """A twin that is still being read must not hold what the program has let go."""
    program = run(f"""
        import fcntl, os, socket, time
        import numpy as np
        memory = np.random.default_rng(1).integers(0, 1 << 62, 40 << 20)
        directory = {str(tmp_path)!r}
        reader, writer = os.pipe()
        if os.fork() == 0:
            os.close(writer)
            os.read(reader, 1)  # until nobody can write any more
            open(directory + "/eof", "w").close()
            time.sleep(1000)
        os.close(reader)
        lock = open(directory + "/lock", "w")
        fcntl.flock(lock, fcntl.LOCK_EX)
        server = socket.create_server(("127.0.0.1", 0))
        print(server.getsockname()[1], flush=True)
        while not os.path.exists(directory + "/close"):
            time.sleep(0.001)
        os.close(writer)
        lock.close()
        server.close()
        print("closed", flush=True)
        time.sleep(1000)
    """)
    port = int(program.lines()[0])
    seen: list[str] = []

    def look(record: ProgressRecord) -> None:
        if record.stage != "store" or seen:
            return
        (tmp_path / "close").touch()
        assert program.lines(more_than=1)[1] == "closed"
        deadline = time.monotonic() + 120
        while not (tmp_path / "eof").exists() and time.monotonic() < deadline:
            time.sleep(0.001)
        seen.append("eof" if (tmp_path / "eof").exists() else "no eof")
        with (tmp_path / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            seen.append("lock")
        with socket.create_server(("127.0.0.1", port)):
            seen.append("port")

    program.save(progress=Progress(look))
    assert seen == ["eof", "lock", "port"]


def test_an_interrupt_while_a_save_is_stored_reaches_the_program_and_nobody_else(run) -> None:
    program = run("""
        import time
        interrupts = 0
        while True:
            try:
                print("interrupts", interrupts, flush=True)
                time.sleep(0.01)
            except KeyboardInterrupt:
                interrupts += 1
    """)
    program.lines(more_than=3)
    sent: list[bool] = []

    def interrupt(record: ProgressRecord) -> None:
        if record.stage == "store" and not sent:
            sent.append(True)
            os.kill(program.tree.kernel_pid, signal.SIGINT)
            deadline = time.monotonic() + 120
            while program.fresh_line() != "interrupts 1":
                assert time.monotonic() < deadline

    saved = program.save(stop=False, progress=Progress(interrupt))
    assert sent
    program.save(stop=True)
    count = len(program.lines())
    program.resume(saved.manifest.info.snapshot_id)
    # The snapshot is of the moment before.
    assert program.lines(more_than=count + 2)[count + 1] == "interrupts 0"
