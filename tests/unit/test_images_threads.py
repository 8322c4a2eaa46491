"""Tasks are shared out; the first error stops all."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from jupyter_gpuckpt.images.worker_threads import share_out
from jupyter_gpuckpt.linux.fresh_memory import Scratch


@pytest.mark.parametrize("threads", [0, 1, 4, 50])
def test_every_task_is_done_once(threads):
    done: list[int] = []
    share_out(range(200), lambda: done.append, threads)
    assert sorted(done) == list(range(200))


def test_no_tasks_are_no_work():
    share_out([], lambda: pytest.fail, 3)


def test_the_first_error_is_raised_and_the_rest_is_left():
    done: list[int] = []

    def work(task: int) -> None:
        if task == 5:
            raise ZeroDivisionError
        done.append(task)

    with pytest.raises(ZeroDivisionError):
        share_out(range(1_000_000), lambda: work, 4)
    assert len(done) < 1_000_000


def test_an_error_while_a_worker_is_made_is_raised():
    def make() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        share_out(range(5), make, 2)


def test_no_thread_is_left():
    before = threading.active_count()
    with ThreadPoolExecutor(2) as pool:
        for _ in range(5):
            pool.submit(share_out, range(10), lambda: str, 3).result()
    assert threading.active_count() == before


def test_scratch_memory_is_reused_and_grows():
    scratch = Scratch()
    first = scratch.get(100)
    first[:] = b"a" * 100
    assert scratch.get(50).obj is first.obj
    assert len(scratch.get(1 << 20)) == 1 << 20
    assert bytes(first) == b"a" * 100


def test_an_index_error_of_the_work_is_an_error():
    with pytest.raises(IndexError):
        share_out([[]], lambda: lambda task: task[0], 2)
