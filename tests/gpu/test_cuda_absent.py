"""Without a GPU, a driver or the package: told as a reason, never as a crash."""

import os
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


def test_a_map_of_gpus_becomes_pairs_of_uuids():
    driver = pytest.importorskip("cuda.bindings.driver")
    old, new = uuid.uuid4(), uuid.uuid4()
    pair = cuda._pair(driver, f"GPU-{old}", str(new))
    assert (bytes(pair.oldUuid.bytes), bytes(pair.newUuid.bytes)) == (old.bytes, new.bytes)
