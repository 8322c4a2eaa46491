"""The server that tests share: one that dies fails the test during which it died, with its log, and the next test has another one."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

#: Tests of one module; in the first one the server dies.
MODULE = """
import os, signal
import pytest

@pytest.fixture
def server({fixture}):
    return {fixture}

def test_first(server):
    page = server.open()
    os.kill(server.process.pid, signal.SIGKILL)
    server.process.wait()

def test_second(server):
    assert server.get("api/kernels") == []
    assert server.open().run("print(41 + 1)") == "42\\n"
    server.kill()
    server.start()

def test_third(server):
    server.process.kill()
    server.process.wait()
"""
#: The server is killed before the test.
BETWEEN = """
import os, signal

def test_first(server_of_all):
    server = server_of_all.made_ready()
    server.kill()
    assert server.made_ready().get("api/kernels") == []
    os.kill(server.process.pid, signal.SIGKILL)
    server.process.wait()
    assert server.made_ready().get("api/kernels") == []
"""


@pytest.fixture
def results(tmp_path):
    """Return a function that runs a module of tests and returns what pytest prints."""

    def run(text):
        path = tmp_path / "test_module.py"
        path.write_text(text)
        done = subprocess.run(
            [
                *(sys.executable, "-m", "pytest", "-vv", "-n", "0", "-p", "no:cacheprovider"),
                *("-p", "tests.conftest", "-p", "tests.server.conftest", path),
            ],
            cwd=Path(__file__).parents[2],
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        return done.stdout + done.stderr

    return run


def outcomes(printed):
    """Return what became of each test and its fixtures, in order."""
    return re.findall(r"::test_(\w+) (PASSED|FAILED|ERROR)", printed)


@pytest.mark.slow
@pytest.mark.parametrize("fixture", ["shared_server", "clean_server"])
def test_a_server_that_dies_fails_that_test_with_its_log_and_the_next_one_has_another(
    results, fixture
):
    printed = results(MODULE.format(fixture=fixture))
    assert outcomes(printed) == [
        ("first", "PASSED"),
        ("first", "ERROR"),
        ("second", "PASSED"),
        ("third", "PASSED"),
    ], printed
    assert "the server ended by itself, with status -9" in printed
    assert "Jupyter Server" in printed.split("ended by itself")[1]


@pytest.mark.slow
def test_a_server_that_ended_between_two_tests_is_started_anew(results):
    printed = results(BETWEEN)
    assert outcomes(printed) == [("first", "PASSED")], printed
