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

#: Each is run with several classes of kernel managers, also such that are not jupyter_server's own. Of the kernels' tests
#: those of the REST handler that resolves paths are left out: they start kernels and do nothing with them.
TESTS = {
    "sessions": ("create", "delete", "modify_kernel_name", "modify_kernel_id"),
    "kernels": (
        "no_kernels",
        "default_kernels",
        "post_kernel_with_client_supplied_id",
        "main_kernel_handler",
        "kernel_handler",
        "kernel_handler_startup_error",
        "kernel_handler_startup_error_pending",
        "connection",
    ),
}


@pytest.mark.timeout(600)
def test_jupyter_servers_own_tests_of_kernels_and_sessions_pass_with_the_extension(criu):
    suite = suite_named("jupyter_server")
    try:
        unpacked(suite)
    except subprocess.CalledProcessError:
        missing("upstream", "the tests of jupyter_server are not in a wheel, and cannot be fetched")
    modules = tuple(
        f"tests/services/{part}/test_api.py::test_{name}"
        for part, names in TESTS.items()
        for name in names
    )
    outcome = run(dataclasses.replace(suite, modules=modules), Variant.EXTENSION, arguments=[])
    assert outcome.good, outcome
