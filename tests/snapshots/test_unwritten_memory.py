"""Saves that read only what was written since the last one: what is in the snapshot, and what becomes of every doubt."""

import logging
import os
import signal
import textwrap

import pytest

from jupyter_gpuckpt.engine.memory import write_tracking
from jupyter_gpuckpt.errors import OperationCancelled
from jupyter_gpuckpt.host import pagemap_scan, processes
from jupyter_gpuckpt.images.segments import readable
from jupyter_gpuckpt.snapshots import unwritten_memory
from jupyter_gpuckpt.wire.progress import Progress

pytestmark = pytest.mark.skipif(
    not write_tracking.is_supported(), reason="this Linux cannot tell what was written"
)

MB = 1 << 20
# Tells the digest of its memory, which it changes on SIGUSR1: a part, and as it says itself.
PROGRAM = f"""
    import hashlib, random, signal, time
    memory, count = bytearray(random.randbytes({32 * MB})), 0
    def change(*_):
        global count
        count += 1
        memory[count * 65536 + 5 : count * 65536 + 9] = b'more'
    signal.signal(signal.SIGUSR1, change)
    while True:
        print(count, hashlib.sha256(memory).hexdigest(), flush=True)
        time.sleep(0.01)
"""


class Cancelled(Progress):
    """One that cancels at the last moment."""

    def point_of_no_return(self):
        raise OperationCancelled("now")


def change(program):
    """Let the program change its memory; return what it says then."""
    count = int(program.fresh_line().split()[0])
    os.kill(program.tree.kernel_pid, signal.SIGUSR1)
    while int((line := program.fresh_line()).split()[0]) == count:
        pass
    return line


@pytest.fixture
def read(monkeypatch):
    """Collect how many bytes of processes' memory each save reads to store them."""
    found = []

    def sources(*arguments):
        made = unwritten_memory_sources(*arguments)
        found.append(sum(end - begin for source in made for begin, end in readable(source)))
        return made

    unwritten_memory_sources = unwritten_memory.sources
    monkeypatch.setattr(unwritten_memory, "sources", sources)
    return found


def test_a_save_reads_what_was_written(run, read):
    program = run(PROGRAM)
    program.fresh_line()
    program.save()
    change(program)
    program.save()
    assert read[0] > 32 * MB
    assert read[1] < read[0] - 24 * MB


def test_snapshots_of_tracked_memory_have_all_changes(run, read):
    program = run(PROGRAM)
    program.fresh_line()
    program.save()
    for _ in range(3):
        change(program)
        program.save()
    said = change(program)
    saved = program.save(stop=True)
    assert read[-1] < read[0] - 24 * MB, "a suspend knows what was written, too"
    program.resume(saved.manifest.info.snapshot_id)
    assert program.fresh_line() == said
    program.save()
    assert read[-1] > 32 * MB, "a resume begins anew"
    change(program)
    program.save()
    assert read[-1] < read[0] - 24 * MB


def test_an_earlier_snapshot_has_its_own_memory(run):
    program = run(PROGRAM)
    program.fresh_line()
    program.save()
    said = change(program)
    middle = program.save()
    change(program)
    program.save(stop=True)
    program.resume(middle.manifest.info.snapshot_id)
    assert program.fresh_line() == said


def test_a_failed_save_makes_the_next_one_read_all(run, read):
    program = run(PROGRAM)
    program.fresh_line()
    program.save()
    said = change(program)
    with pytest.raises(OperationCancelled):
        program.save(progress=Cancelled())
    saved = program.save()
    assert read[-1] > 32 * MB
    program.save(stop=True)
    program.resume(saved.manifest.info.snapshot_id)
    assert program.fresh_line() == said


def test_a_failed_suspend_does_not(run, read):
    program = run(PROGRAM)
    program.fresh_line()
    program.save()
    change(program)
    with pytest.raises(OperationCancelled):
        program.save(stop=True, progress=Cancelled())
    change(program)
    program.save()
    assert read[-1] < read[0] - 24 * MB


def test_a_deleted_predecessor_is_not_relied_on(run, read):
    program = run(PROGRAM)
    program.fresh_line()
    program.save()
    second = program.save()
    program.store.delete(second.manifest.info.snapshot_id)
    change(program)
    program.save()
    assert read[-1] > 32 * MB


def test_one_wrong_page_ends_the_tracking(run, read, monkeypatch, caplog):
    """Also what makes the other tests able to fail: every chunk is compared there."""
    program = run(PROGRAM)
    program.fresh_line()
    program.save()
    said = change(program)
    monkeypatch.setattr(pagemap_scan, "unwritten_pages", pagemap_scan.own_pages)
    saved = program.save()
    assert read[-1] > 32 * MB
    assert [one.levelno for one in caplog.records].count(logging.ERROR) == 1
    caplog.clear()
    assert not tracking_of(program).is_on
    program.save()
    assert read[-1] > 32 * MB
    program.save(stop=True)
    program.resume(saved.manifest.info.snapshot_id)
    assert program.fresh_line() == said


def test_without_a_userfaultfd_all_is_read(run, read, monkeypatch):
    """As in a container whose seccomp profile forbids it."""

    def refused(pid):
        raise PermissionError(1, "userfaultfd")

    monkeypatch.setattr(write_tracking, "_userfaultfd_of", refused)
    program = run(PROGRAM)
    program.fresh_line()
    program.save()
    change(program)
    program.save()
    assert read[-1] > 32 * MB


def test_the_program_never_has_the_descriptor(run):
    program = run(PROGRAM)
    program.fresh_line()
    program.save()
    assert tracking_of(program).is_on
    found = processes.descriptors(program.tree.kernel_pid).values()
    assert not [name for name in found if "userfaultfd" in name]


def test_the_tracking_of_a_process_that_has_ended_is_closed(run):
    program, other = run(PROGRAM), run(PROGRAM)
    program.fresh_line()
    program.save()
    first = tracking_of(program)
    program.end()
    program.tracked.of(other.tree)
    assert not first.is_on


def test_another_program_in_the_process_is_read_whole(run, read, tmp_path):
    """After execve nothing of what was known is there."""
    other = tmp_path / "other.py"
    other.write_text(textwrap.dedent(PROGRAM).replace("print(count", "print(count + 1000"))
    program = run(
        PROGRAM.replace("def change(*_):", "def change(*_):\n        import os, sys").replace(
            "count += 1\n", f"os.execv(sys.executable, [sys.executable, {str(other)!r}])\n"
        )
    )
    program.fresh_line()
    program.save()
    assert int(change(program).split()[0]) >= 1000
    program.save()
    assert read[-1] > 32 * MB


def tracking_of(program):
    return program.tracked.of(program.tree)
