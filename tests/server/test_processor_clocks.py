"""Python's clocks of CPU time go on after a resume, though Linux counts from zero then."""

import re

import pytest

CLOCKS = """
import os, resource, time
from time import process_time
def clocks():
    usage, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return [
        process_time(), time.process_time_ns() / 1e9, time.thread_time(), time.thread_time_ns() / 1e9,
        time.clock_gettime(time.CLOCK_PROCESS_CPUTIME_ID), time.clock_gettime_ns(time.CLOCK_THREAD_CPUTIME_ID) / 1e9,
        usage.ru_utime, usage.ru_stime, children.ru_utime, os.times().user, os.times().children_user,
    ]
os.system("python -c 'while __import__(\\"time\\").process_time() < 0.05: pass'")
last = clocks()
"""
GO_ON = """
now = clocks()
assert all(a <= b < a + 3 for a, b in zip(last, now)), (last, now)
assert time.clock_gettime(time.CLOCK_MONOTONIC) - time.monotonic() < 1
last = now
print("right")
"""


@pytest.fixture
def server(clean_server):
    return clean_server


def test_clocks_of_cpu_time_go_on_where_they_stopped(server):
    page = server.open()
    page.run(CLOCKS)
    for verbs in (["save"], ["suspend", "resume"], ["suspend", "resume"]):
        for verb in verbs:
            server.do(verb, page.kernel_id)
        assert page.run(GO_ON) == "right\n"
    forked = (
        "if not (child := os.fork()): os._exit(process_time() < 1)\nprint(os.waitpid(child, 0)[1])"
    )
    assert page.run(forked) == "256\n"


def test_a_cell_s_time_counts_from_its_beginning_over_a_resume(server, tmp_path):
    page = server.open()
    page.run("import os, time")
    busy = page.execute(
        f"%%time\nprint('begun', flush=True)\nwhile not os.path.exists('{tmp_path}/go'): time.sleep(0.01)"
    )
    page.wait_for(lambda _: page.printed(busy))
    server.do("suspend", page.kernel_id)
    server.do("resume", page.kernel_id)
    (tmp_path / "go").touch()
    page.wait_for(lambda _: "Wall time" in page.printed(busy))
    assert not re.search(r"-\d", page.printed(busy)), page.printed(busy)
