"""Peer access between GPUs is off while a kernel is frozen, and on again before its next cell; with a scripted driver."""

import subprocess
from pathlib import Path

import pytest

from tests.conftest import wait_for

SETUP = """
import ctypes, os
os.environ["SCRIPTED_CUDA_LOG"] = {log!r}
cuda = ctypes.CDLL({library!r})
cuda.scripted_set(0, 1)
def peers():
    return [cuda.scripted_peers(0, 1), cuda.scripted_peers(1, 0), cuda.scripted_retained(0)]
"""
ON = "[1, 0, 0]\n"
#: What a save has the agent do.
SWITCHED = ["synchronize 0 -1", "synchronize 1 -1", "disable 0 1", "enable 0 1"]


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    built = tmp_path_factory.mktemp("driver") / "libcuda.so.1"
    source = Path(__file__).with_name("scripted_libcuda.c")
    options = ["-shared", "-fPIC", "-Wall", "-Werror", "-Wl,-soname,libcuda.so.1"]
    subprocess.run(["gcc", *options, "-o", built, source], check=True)
    return built


@pytest.fixture
def page(clean_server, library, tmp_path):
    found = clean_server.open("notebook.ipynb")
    found.log = tmp_path / "calls"
    found.run(SETUP.format(log=str(found.log), library=str(library)))
    return found


def calls(page):
    """Those since the last time."""
    found = page.log.read_text().splitlines()
    page.log.write_text("")
    return found


def test_it_is_off_during_a_save_and_on_before_the_next_cell(clean_server, page):
    operation = clean_server.begin("save", page.kernel_id)
    assert page.run("print(peers())") == ON
    assert calls(page) == SWITCHED
    assert clean_server.finish(operation)["state"] == "succeeded"
    assert page.run("print(peers())") == ON


def test_a_suspended_kernel_has_it_on_again_after_its_resume(clean_server, page):
    clean_server.do("suspend", page.kernel_id)
    assert calls(page) == SWITCHED[:-1]
    assert page.run("print(peers())") == ON
    assert calls(page) == SWITCHED[-1:]


def test_a_kernel_that_cannot_be_parked_has_it_on_again(clean_server, page):
    operation = clean_server.finish(clean_server.begin("park", page.kernel_id))
    assert operation["error"]["message"] == "The kernel uses no GPU."
    assert page.run("print(peers())") == ON
    assert calls(page) == SWITCHED


def test_while_a_cell_runs_it_is_looked_at_and_left_alone(clean_server, page, tmp_path):
    stop = tmp_path / "stop"
    code = "import pathlib, time\npathlib.Path('runs').touch()\n"
    page.execute(f"{code}while not os.path.exists({str(stop)!r}): time.sleep(0.01)")
    wait_for((clean_server.root / "runs").exists)
    clean_server.do("save", page.kernel_id)
    assert calls(page) == ["enable 1 0", "disable 1 0"]
    stop.touch()
    assert page.run("print(peers())") == ON
    assert calls(page) == []


def test_a_kernel_without_cuda_is_not_kept_waiting(clean_server):
    page = clean_server.open("plain.ipynb")
    page.run("x = 1")
    operation = clean_server.begin("save", page.kernel_id)
    assert page.run("print(x)") == "1\n"
    assert clean_server.finish(operation)["state"] == "succeeded"
