"""What a test of this folder sees of a machine's GPUs; no GPU is needed to tell."""

import os
import subprocess
import sys

import pytest

NAME = "CUDA_VISIBLE_DEVICES"


@pytest.fixture(scope="module", autouse=True, params=[None, "", "1", "2,0,1"])
def environment(request):
    """Yield the environment in which pytest was started."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param is None:
            patch.delenv(NAME, raising=False)
        else:
            patch.setenv(NAME, request.param)
        yield request.param


def seen():
    code = f"import os; print(os.environ.get({NAME!r}))"
    return subprocess.check_output([sys.executable, "-c", code], text=True).strip()


def test_a_test_sees_the_first_gpu_only(environment):
    assert seen() == {None: "0", "": "", "1": "1", "2,0,1": "2"}[environment]


@pytest.mark.several_gpus
def test_one_that_needs_several_sees_what_was_there(environment):
    assert seen() == str(environment)
    assert os.environ.get(NAME) == environment
