"""Runs the engine's tests a second time, as an ordinary user, where root runs the suite."""

import os
import subprocess
import sys

import pytest

from tests.as_user import ROOT
from tests.daemon.test_crashes_at_every_step import MOMENTS, STEPS

#: Tests of the other files that are also slow tests for the user.
RARE = ("scattered", "several_processes")
#: What takes long, and the same way for every user.
SLOW = "not cycles_leave and not rewritten and not pools and not dask and not does_not_end"
QUICK = " and not ".join((SLOW, *RARE))
#: Files whose steps are the same for every user. Rights matter where a tree is launched, seized, put back and cleaned up.
THE_SAME = {
    ROOT / "tests/engine/test_gpu_order.py",
    *(
        ROOT / f"tests/snapshots/test_{name}.py"
        for name in (
            *("clusters", "criu_killed_in_a_task", "criu_wheel", "file_locks", "hard_state"),
            *("hidden_pages", "taken_names"),
            *("hostile_snapshots", "inner_connections", "memory_limits"),
            *("rehearsal", "replaced_programs", "shared_pages", "shared_state"),
            *("signals_at_a_resume", "unseen"),
        )
    ),
}
CRASHES = "tests/daemon/test_crashes_at_every_step.py"
#: Crashes in steps that a user takes in another way.
OTHER_WAYS = "freeze or capture or images or restore or pages or go or write"
#: One crash in each of them.
CHOSEN = (
    *("suspend-freeze", "save-capture", "resume-images", "resume-restore", "resume-pages"),
    *("save-write", "resume-go", "resume-write"),
)
ONE_OF_EACH = " or ".join(CHOSEN)
#: Words for pytest.
PARTS = {
    "GPU memory": ["tests/engine/test_gpu_order*.py"],
    "snapshots, a to h": ["tests/snapshots/test_[a-h]*.py", "-k", QUICK],
    "snapshots, i to r": ["tests/snapshots/test_[i-r]*.py", "-k", QUICK],
    "snapshots, s to z": ["tests/snapshots/test_[s-z]*.py", "-k", QUICK],
    "crashes": [CRASHES, "-k", ONE_OF_EACH],
}


def test_every_file_of_snapshots_is_in_a_part():
    matched = [path for words in PARTS.values() for path in ROOT.glob(words[0])]
    assert {*ROOT.glob("tests/snapshots/test_*.py")} <= {*matched}
    assert len(matched) == len({*matched})
    assert {*matched} >= THE_SAME


def test_each_chosen_crash_is_one_of_those_at_every_step():
    crashes = [f"{verb}-{at.rpartition('.')[2]}" for verb, at in [*STEPS, *MOMENTS]]
    assert [crashes.count(one) for one in CHOSEN] == [1] * len(CHOSEN)


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
@pytest.mark.parametrize("part", PARTS)
def test_an_ordinary_user_needs_no_right(part):
    pattern, *options = PARTS[part]
    run_as_user({*ROOT.glob(pattern)} - THE_SAME, options)


@AS_ROOT
@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_an_ordinary_user_needs_no_right_for_the_rest():
    run_as_user(THE_SAME, ["-k", SLOW])
    run_as_user({*ROOT.glob("tests/snapshots/test_s*.py")} - THE_SAME, ["-k", " or ".join(RARE)])
    run_as_user({ROOT / CRASHES}, ["-k", f"({OTHER_WAYS}) and not ({ONE_OF_EACH})"])


def run_as_user(paths, options):
    """Run the tests of these files as an ordinary user."""
    python = [sys.executable, "-m"]
    words = [*python, "tests.as_user", *python, "pytest", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*words, *options, *sorted(str(path.relative_to(ROOT)) for path in paths)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    print(done.stdout)
    assert done.returncode == 0
