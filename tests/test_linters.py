"""The linters are tests: what they find is shown as they print it."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

LINTERS = {
    "ruff_check": ["-m", "ruff", "check", "--no-cache", "."],
    "ruff_format": ["-m", "ruff", "format", "--no-cache", "--check", "."],
    "mypy": ["-m", "mypy"],
    # import-linter has no __main__; this is what its command `lint-imports` calls.
    "layers": [
        "-c",
        "from importlinter.cli import lint_imports_command as run; run()",
        "--no-cache",
    ],
}


@pytest.mark.parametrize("arguments", LINTERS.values(), ids=LINTERS)
def test_a_linter_finds_nothing(arguments):
    result = subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if result.returncode != 0:
        pytest.fail(result.stdout.strip(), pytrace=False)
