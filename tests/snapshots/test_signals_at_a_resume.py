"""A signal that arrives while a tree is restored is handled on a stack that is there."""

from __future__ import annotations

import pytest

#: Linux tells a parent of children that are stopped, as they are at the end of a restore.
PROGRAM = """
    import signal, subprocess, time
    seen = []
    signal.signal(signal.SIGCHLD, lambda *_: seen.append(1))
    children = [subprocess.Popen(["sleep", "1000"]) for _ in range(3)]
    def deeper(depth):
        if depth:
            return deeper(depth - 1)
        n = 0
        while True:
            n += 1
            print(n, [child.poll() for child in children], len(seen) > 0, flush=True)
            time.sleep(0.005)
    deeper(50)
"""


@pytest.mark.slow
def test_a_handler_of_a_signal_from_the_restore_finds_its_stack(run) -> None:
    program = run(PROGRAM)
    program.lines(more_than=3)
    for _ in range(6):
        snapshot = program.save(stop=True).manifest.info.snapshot_id
        last = int(program.lines()[-1].split()[0])
        count = len(program.lines())
        program.resume(snapshot)
        number, said = program.lines(more_than=count)[count].split(maxsplit=1)
        assert int(number) == last + 1
        assert said.startswith("[None, None, None]")
    assert program.fresh_line().endswith("True")
