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

#: With the manager that is jupyter_server's own default. Of the kernels' tests those of the REST handler that resolves paths are
#: left out, which start kernels and do nothing with them, and those whose requests another one makes, too.
TESTS = {
    "sessions": ("create", "delete", "modify_kernel_id"),
    "kernels": (
        "no_kernels",
        "post_kernel_with_client_supplied_id",
        "main_kernel_handler",
        "kernel_handler",
        "kernel_handler_startup_error",
        "kernel_handler_startup_error_pending",
        "connection",
    ),
}
DEFAULT_MANAGER = "jp_server_config1"
#: With all managers, of which some are without asyncio, not jupyter_server's own, or start kernels in the background.
WITH_ALL_MANAGERS = "main_kernel_handler"


def modules() -> tuple[str, ...]:
    """Return the ids of the tests."""
    found = []
    for part, names in TESTS.items():
        for name in names:
            test = f"tests/services/{part}/test_api.py::test_{name}"
            found.append(test if name == WITH_ALL_MANAGERS else f"{test}[{DEFAULT_MANAGER}]")
    return tuple(found)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_jupyter_servers_own_tests_of_kernels_and_sessions_pass_with_the_extension(criu):
    suite = suite_named("jupyter_server")
    try:
        unpacked(suite)
    except subprocess.CalledProcessError:
        missing("upstream", "the tests of jupyter_server are not in a wheel, and cannot be fetched")
    outcome = run(dataclasses.replace(suite, modules=modules()), Variant.EXTENSION, arguments=[])
    assert outcome.good, outcome
