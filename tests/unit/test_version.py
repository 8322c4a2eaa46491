"""The version of the package as Python code reads it."""

import subprocess
import sys
from importlib import metadata

import pytest

import jupyter_gpuckpt


def test_the_version_is_that_of_the_installed_package():
    assert jupyter_gpuckpt.__version__ == metadata.version("jupyter_gpuckpt")
    with pytest.raises(AttributeError, match="__versoin__"):
        jupyter_gpuckpt.__versoin__  # noqa: B018


def test_importing_the_package_imports_nothing_else():
    code = "import sys; a = {*sys.modules}; import jupyter_gpuckpt; print({*sys.modules} - a)"
    said = subprocess.check_output(
        [
            sys.executable,
            "-S",
            "-c",
            f"import sys; sys.path.insert(0, {str(jupyter_gpuckpt.__path__[0] + '/..')!r}); import typing, __future__; {code}",
        ],
        text=True,
    )
    assert said.strip() == "{'jupyter_gpuckpt'}"
