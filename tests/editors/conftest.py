"""One relay and one daemon for the tests of a module."""

import pytest

from .driving import Desk


@pytest.fixture(scope="module")
def module_desk(module_daemon_env, tmp_path_factory):
    """Yield an installed kernelspec with a maker of editor windows; end all their processes afterwards."""
    made = Desk(module_daemon_env, tmp_path_factory.mktemp("desk"))
    yield made
    made.close()


@pytest.fixture
def desk(module_desk, tmp_path):
    """Return the same with a folder of the test's own."""
    module_desk.folder = tmp_path
    yield module_desk
    for window in module_desk.windows:
        window.close()
    module_desk.windows.clear()
