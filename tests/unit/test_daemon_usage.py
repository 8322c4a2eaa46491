"""How the daemon counts what a process tree uses."""

from jupyter_gpuckpt.daemon.kernels.usage import Usage, counted

MB = 1_000_000


def test_memory_is_counted_only_when_resident_bytes_differ():
    before = Usage(memory_bytes=90 * MB, resident_bytes=100 * MB)
    assert counted(lambda: 101 * MB, lambda: 1 / 0, before) == (90 * MB, 100 * MB)
    assert counted(lambda: 150 * MB, lambda: 140 * MB, before) == (140 * MB, 150 * MB)
    assert counted(lambda: 100 * MB, lambda: 95 * MB, None) == (95 * MB, 100 * MB)


def test_what_changed_while_it_was_counted_is_counted_again():
    looks, counts = [100 * MB, 200 * MB, 200 * MB], [90 * MB, 190 * MB]
    assert counted(lambda: looks.pop(0), lambda: counts.pop(0), None) == (190 * MB, 200 * MB)
    assert not looks + counts


def test_memory_that_never_stands_still_is_counted_three_times():
    sizes = iter(range(100 * MB, 2000 * MB, 100 * MB))
    counts = [1, 2, 3]
    assert counted(lambda: next(sizes), lambda: counts.pop(0), None)[0] == 3
