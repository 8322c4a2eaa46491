"""What forked processes share copy-on-write stays shared, and what a resume needs is counted so."""

from __future__ import annotations

from jupyter_gpuckpt.engine import launch

MB = 1 << 20

#: A pool of workers that have inherited 200 MB; one of them has changed a page, one has freed some, and each has its own memory.
POOL = """
    import hashlib, mmap, os, time
    data = bytearray(os.urandom(200 << 20))
    number = 0
    for worker in (1, 2, 3):
        if not os.fork():
            number = worker
            break
    if number == 1:
        data[100 << 20] ^= 255
    if number == 2:
        freed = data
        del data[150 << 20 :]
    own = os.urandom(1 << 20)
    while True:
        digest = hashlib.blake2b(data)
        digest.update(own)
        print(number, os.getppid(), digest.hexdigest(), flush=True)
        time.sleep(0.1)
"""


def said(program, after: int) -> dict[str, str]:
    """What each of the four says, from this line on."""
    count = after
    while True:
        lines = program.lines(more_than=count)
        words = {line.split()[0]: line for line in lines[after:]}
        if len(words) == 4:
            return words
        count = len(lines)


def test_a_pool_that_shares_memory_shares_it_after_a_resume(run):
    program = run(POOL)
    before = said(program, 0)
    used = launch.memory_bytes(program.tree)
    assert 200 * MB < used < 350 * MB
    saved = program.save(stop=True)
    count = len(program.lines())
    program.resume(saved.manifest.info.snapshot_id)
    assert said(program, count) == before
    now = launch.memory_bytes(program.tree)
    print(used / MB, now / MB)
    assert now < used + 60 * MB
