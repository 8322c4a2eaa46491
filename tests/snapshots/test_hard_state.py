"""Process trees that CRIU saves without complaint and that were lost at the resume."""

from __future__ import annotations

ZOMBIE = """
    import os, subprocess, time
    child = subprocess.Popen(["true"])
    while open(f"/proc/{child.pid}/stat").read().rsplit(")", 1)[1].split()[0] != "Z":
        time.sleep(0.001)
    print("ready", flush=True)
    while not os.path.exists("reap"):
        print("waiting", flush=True)
        time.sleep(0.01)
    print("status", child.wait(), flush=True)
    print("later child", subprocess.run(["true"]).returncode, flush=True)
"""


def test_a_child_that_nobody_has_waited_for_comes_back_and_is_reaped(run, tmp_path):
    program = run(ZOMBIE)
    program.lines(more_than=2)
    for _ in range(2):
        saved = program.save(stop=True)
        assert saved.manifest.highest_pid < 1 << 22
        program.resume(saved.manifest.info.snapshot_id)
        program.fresh_line()
    (tmp_path / "program-0" / "reap").touch()
    while program.lines()[-1] == "waiting":
        program.lines(more_than=len(program.lines()))
    assert "status 0" in program.lines()
    program.lines(more_than=program.lines().index("status 0") + 1)
    assert program.lines()[-1] == "later child 0"


FIFOS = """
    import os, stat, time
    for name in ("open", "closed"):
        os.mkfifo(f"/dev/shm/{name}", 0o620)
        os.chmod(f"/dev/shm/{name}", 0o620)
    fifo = os.open("/dev/shm/open", os.O_RDWR)
    os.write(fifo, b"on its way")
    while True:
        waiting = os.read(fifo, 100)
        os.write(fifo, waiting)
        modes = {stat.filemode(os.lstat(f"/dev/shm/{name}").st_mode) for name in ("open", "closed")}
        again = os.open("/dev/shm/open", os.O_RDWR)
        print(waiting, modes, os.path.samestat(os.fstat(again), os.fstat(fifo)), flush=True)
        os.close(again)
        time.sleep(0.01)
"""


def test_fifos_in_shared_memory_come_back_with_what_waits_in_them(run):
    program = run(FIFOS)
    expected = "b'on its way' {'prw--w----'} True"
    assert program.fresh_line() == expected
    for _ in range(2):
        saved = program.save(stop=True)
        program.resume(saved.manifest.info.snapshot_id)
        assert program.fresh_line() == expected
