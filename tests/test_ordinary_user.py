"""Runs the engine's tests as an ordinary user, where root runs the suite."""

import os
import subprocess
import sys

import pytest

from tests.as_user import ROOT, UID
from tests.daemon.test_crashes_at_every_step import MOMENTS, STEPS
from tests.ordinary_user import CRASHES, ONE_OF_EACH, OTHER_WAYS, PARTS, RARE, SLOW, THE_SAME


def test_every_file_of_snapshots_is_in_a_part():
    matched = [path for part in PARTS.values() for path in part.paths()]
    assert {*ROOT.glob("tests/snapshots/test_*.py")} <= {*matched}
    assert len(matched) == len({*matched})
    assert {*matched} >= THE_SAME


def test_each_chosen_crash_is_one_of_those_at_every_step():
    crashes = [f"{verb}-{at.rpartition('.')[2]}" for verb, at in [*STEPS, *MOMENTS]]
    assert [crashes.count(one) for one in ONE_OF_EACH] == [1] * len(ONE_OF_EACH)


AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="the whole suite runs as one")


@AS_ROOT
def test_the_user_has_what_tests_and_mpi_ask_for_and_nothing_else_of_roots():
    asked = {
        "GPUCKPT_CYCLES": "7",
        "OCL_ICD_FILENAMES": "none.so",
        "OMPI_MCA_btl": "self",
        "SOMETHING_ELSE": "root's",
    }
    words = [sys.executable, "-m", "tests.as_user", "/usr/bin/env", "-0"]
    told = subprocess.check_output(words, cwd=ROOT, env=os.environ | asked, text=True)
    found = dict(line.split("=", 1) for line in told.split("\0") if line)
    assert {name: found.get(name) for name in asked} == {**asked, "SOMETHING_ELSE": None}
    assert found["USER"] == "gpuckpt-user"


@AS_ROOT
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", PARTS)
def test_an_ordinary_user_needs_no_right(name):
    part = PARTS[name]
    # Other parts may run at the same time, and some tests count a user's processes and pipes.
    user = os.environ.get("GPUCKPT_TEST_USER") or UID - [*PARTS].index(name)
    run_as_user(part.paths() - THE_SAME, part.expression(), user)


@AS_ROOT
@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_an_ordinary_user_needs_no_right_for_the_rest():
    not_slow = " and ".join(f"not {word}" for word in SLOW)
    run_as_user(THE_SAME, not_slow)
    run_as_user({*ROOT.glob("tests/snapshots/test_s*.py")} - THE_SAME, " or ".join(RARE))
    others = " or ".join(OTHER_WAYS)
    run_as_user({CRASHES}, f"({others}) and not ({' or '.join(ONE_OF_EACH)})")


def run_as_user(paths, expression, user=""):
    """Run the tests of these files that an expression of `pytest -k` chooses as an ordinary user, of this name or number."""
    python = [sys.executable, "-m"]
    words = [*python, "tests.as_user", *python, "pytest", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*words, "-k", expression, *sorted(str(path.relative_to(ROOT)) for path in paths)],
        cwd=ROOT,
        env={**os.environ, "GPUCKPT_TEST_USER": str(user)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        # Not by an assertion: the report of a test that is run again lacks what was printed.
        pytest.fail(done.stdout[-30_000:], pytrace=False)
