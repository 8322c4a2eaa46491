"""`make test-oldest` installs the oldest versions that the project allows."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
#: Their tests are no part of the target, need what it does not install, or need no particular version.
OTHERS = {"bench", "criu", "dev", "docs", "gpu", "matrix", "scheduler", "test", "wheels"}
USED = [
    *PROJECT["dependencies"],
    *(one for extra in EXTRAS.keys() - OTHERS for one in EXTRAS[extra] if "[" not in one),
    *(one for one in EXTRAS["test"] if re.match("(ipykernel|nbclient|notebook|papermill)>=", one)),
]


def test_every_minimum_is_the_version_that_is_tested():
    lines = (ROOT / "tests" / "oldest.txt").read_text().splitlines()
    pins = [line for line in lines if not line.startswith("#")]
    assert versions(r"([\w-]+)==([\d.]+)\.\*$", pins) == versions(r"([\w-]+)>=([\d.]+)", USED)


def versions(pattern, lines):
    """Return the first two numbers of each package's version."""
    found = (re.match(pattern, line).groups() for line in lines)
    return {
        name: [int(number) for number in f"{version}.0".split(".")[:2]] for name, version in found
    }
