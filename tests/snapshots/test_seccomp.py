"""The seccomp filter that keeps programs from using io_uring: it neither grows nor goes with saves and resumes."""

from __future__ import annotations

import textwrap

import msgspec
import pytest
from msgspec.structs import replace

from jupyter_gpuckpt.errors import KernelNotCheckpointable
from jupyter_gpuckpt.host import seccomp
from jupyter_gpuckpt.wire.manifest_records import LaunchSpec
from tests.parameters import some_slow
from tests.programs import SANDBOX
from tests.snapshots.test_failing_saves import assert_runs_on

SETUP = """
    import ctypes, errno, os, subprocess, sys, time
    libc = ctypes.CDLL(None, use_errno=True)
    def io_uring():
        parameters = ctypes.create_string_buffer(120)
        descriptor = libc.syscall(425, 4, parameters)
        if descriptor >= 0:
            os.close(descriptor)
        return errno.errorcode[ctypes.get_errno()] if descriptor < 0 else "a descriptor"
    sleeper = subprocess.Popen(["sleep", "1000"])
"""
LOOP = """
    n = 0
    while True:
        n += 1
        print(n, io_uring(), flush=True)
        time.sleep(0.01)
"""


@pytest.mark.parametrize("plain", some_slow([False, True], {False}))
def test_programs_find_no_io_uring_and_are_saved_with_one_filter_for_ever(run, engine, plain):
    program = run(SETUP + LOOP, engine=replace(engine, plain=plain))
    assert program.fresh_line().endswith("ENOSYS")
    program.save()
    assert program.fresh_line().endswith("ENOSYS")
    for _ in range(3):
        program.resume(program.save(stop=True).manifest.info.snapshot_id)
        assert program.fresh_line().endswith("ENOSYS")
        inherited = seccomp.filters(program.tree.init_pid)
        assert inherited >= 1
        assert seccomp.filters(program.tree.kernel_pid) == inherited
    program.save()
    assert_runs_on(program)


def test_a_process_with_a_filter_of_its_own_is_refused_by_name(run):
    program = run(textwrap.dedent(SETUP) + SANDBOX + textwrap.dedent(LOOP))
    program.lines(more_than=2)
    with pytest.raises(KernelNotCheckpointable, match=r"sandbox.*python") as caught:
        program.save(stop=True)
    assert str(program.tree.kernel_pid) in caught.value.details
    assert_runs_on(program)


def test_the_setting_is_left_out_where_it_is_the_default():
    """So that a version without it reads the records and manifests of those who do not use it."""
    spec = LaunchSpec("id", ["python"], {}, "/", "/log")
    assert b"io_uring" not in msgspec.json.encode(spec)
    chosen = msgspec.structs.replace(spec, io_uring=True)
    assert msgspec.json.decode(msgspec.json.encode(chosen), type=LaunchSpec).io_uring
