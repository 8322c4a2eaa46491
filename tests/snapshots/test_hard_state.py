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
