"""The part of jupyter_server's own tests that shows most quickly what the extension does to kernels and sessions.

All of them, and the other suites, are run by `make upstream`.
"""

import dataclasses
import subprocess

import pytest

from tests.conftest import missing

from .running import run
from .sdists import unpacked
from .suites import Variant, suite_named

#: Each is run with several classes of kernel managers, also such that are not jupyter_server's own.
SESSIONS = ("create", "delete", "modify_kernel_name", "modify_kernel_id")
KERNELS = "tests/services/kernels/test_api.py"


@pytest.mark.timeout(600)
def test_jupyter_servers_own_tests_of_kernels_and_sessions_pass_with_the_extension(criu):
    suite = suite_named("jupyter_server")
    try:
        unpacked(suite)
    except subprocess.CalledProcessError:
        missing("upstream", "the tests of jupyter_server are not in a wheel, and cannot be fetched")
    sessions = (f"tests/services/sessions/test_api.py::test_{name}" for name in SESSIONS)
    outcome = run(
        dataclasses.replace(suite, modules=(KERNELS, *sessions)), Variant.EXTENSION, arguments=[]
    )
    assert outcome.good, outcome
