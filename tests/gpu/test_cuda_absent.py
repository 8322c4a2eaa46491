"""Without a GPU, a driver or the package: told as a reason, never as a crash."""

import ctypes
import os
import struct
import subprocess
import sys
import uuid

import pytest

from jupyter_gpuckpt.engine.gpu.driver import cuda
from jupyter_gpuckpt.errors import ToolMissing


@pytest.fixture(autouse=True)
def needs_no_gpu():
    if cuda.available()[0]:
        pytest.skip("there is a GPU here")


def test_absence_is_a_reason_and_every_question_has_an_answer():
    usable, reason = cuda.available()
    assert not usable
    assert reason
    assert cuda.available() == (usable, reason)
    assert cuda.state(os.getpid()) is None
    assert cuda.restore_thread(os.getpid()) is None
    assert not cuda.is_cuda_process(os.getpid())
    assert cuda.bring_back(os.getpid()) is None


@pytest.mark.parametrize("step", [cuda.checkpoint, cuda.restore, cuda.unlock])
def test_a_step_says_what_is_missing(step):
    with pytest.raises(ToolMissing, match="GPU memory cannot be") as caught:
        step(os.getpid())
    assert cuda.available()[1] in caught.value.message
    with pytest.raises(ToolMissing):
        cuda.lock(os.getpid(), 1)


def test_the_package_is_imported_only_when_asked():
    code = "import sys, jupyter_gpuckpt.engine.gpu.driver.cuda; assert 'cuda' not in sys.modules"
    subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )


def test_a_map_of_gpus_is_laid_out_as_the_driver_reads_it():
    """As in cuda.h: a pointer to pairs of UUIDs, their number, and zeros."""
    # 13.0 and 13.3.0 have no such arguments.
    pytest.importorskip("cuda.bindings", minversion="13.3.1")
    driver = pytest.importorskip("cuda.bindings.driver")
    gpu_map = {uuid.uuid4(): uuid.uuid4() for _ in range(3)}
    arguments = cuda._moving(driver, {f"GPU-{old}": f"GPU-{gpu_map[old]}" for old in gpu_map})
    data = ctypes.string_at(arguments.getPtr(), 64)
    pairs, number = struct.unpack_from("QI", data)
    assert number == 3
    assert not any(data[12:])
    expected = b"".join(old.bytes + new.bytes for old, new in gpu_map.items())
    assert ctypes.string_at(pairs, len(expected)) == expected


def test_the_limit_of_a_lock_is_laid_out_as_the_driver_reads_it():
    driver = pytest.importorskip("cuda.bindings.driver")
    arguments = driver.CUcheckpointLockArgs()
    arguments.timeoutMs = 1234
    assert ctypes.string_at(arguments.getPtr(), 64) == struct.pack("I60x", 1234)
