"""`suspend --all --within`: what hooks run before a machine or container goes, here without any Jupyter server."""

import json
import os
import subprocess
import sys
import time

import pytest


def states(gpuckpt_json):
    return {one["kernel_id"]: one["state"] for one in gpuckpt_json("ps")["kernels"]}


def hold(kernel, megabytes):
    code = f"numpy.random.default_rng(1).bytes({megabytes} * 10**6)"
    assert kernel.worth(f"exec('import numpy; held = {code}', globals()) or 1") == "1"


@pytest.mark.slow
def test_all_kernels_are_suspended_and_a_report_says_so(kernels, gpuckpt, gpuckpt_json):
    assert gpuckpt("suspend", "--all").stdout == "No kernels are running.\n"
    first, second = kernels(2)
    for number, kernel in enumerate((first, second)):
        assert kernel.worth(f"globals().update(x={number}) or x") == str(number)
    gpuckpt("suspend", first.id)
    # What is suspended already is no kernel that runs.
    report = gpuckpt_json("suspend", "--all", "--within", "200s")
    (outcome,) = report["kernels"]
    assert (outcome["kernel_id"], outcome["saved"], outcome["error"]) == (second.id, True, None)
    assert outcome["size_bytes"] > 1_000_000
    assert outcome["seconds"] <= report["seconds"]
    assert set(states(gpuckpt_json).values()) == {"suspended"}
    for number, kernel in enumerate((first, second)):
        gpuckpt("resume", kernel.id)
        assert kernel.worth("x") == str(number)
    said = gpuckpt("suspend", "--all").stdout.splitlines()
    assert said[0].split() == ["KERNEL", "NAME", "MEMORY", "NOW", "TOOK"]
    assert said[-1].startswith("2 of 2 kernels suspended in ")
    for kernel in (first, second):
        gpuckpt("resume", kernel.id)


@pytest.mark.slow
def test_kernels_of_other_daemons_of_the_same_data_are_suspended_too(
    kernels, gpuckpt, gpuckpt_json, daemon_env
):
    """A hook's place is seldom that of the kernels; here it is in another network namespace."""
    (kernel,) = kernels(1)
    assert kernel.worth("globals().update(x=41) or x") == "41"
    command = [sys.executable, "-m", "jupyter_gpuckpt.cli", "suspend", "--all", "--json"]
    # Those of another data directory are somebody else's work.
    other = {"JUPYTER_GPUCKPT_DATA_DIR": f"{daemon_env['JUPYTER_GPUCKPT_DATA_DIR']}/other"}
    for env, saved in ((other, []), ({}, [kernel.id])):
        done = subprocess.run(
            ["unshare", "--net", *command],
            env=daemon_env | env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=True,
        )
        report = json.loads(done.stdout)
        assert [one["kernel_id"] for one in report["kernels"] if one["saved"]] == saved
    assert states(gpuckpt_json) == {kernel.id: "suspended"}
    gpuckpt("resume", kernel.id)
    assert kernel.worth("x + 1") == "42"


@pytest.fixture
def slow_daemon(gpuckpt):
    """Start a daemon with as many threads as processors, so that it is not too fast for the test."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    gpuckpt("ps")
    os.sched_setaffinity(0, before)


@pytest.mark.slow
def test_what_fits_is_begun_first_and_what_does_not_fit_runs_on(
    slow_daemon, kernels, gpuckpt, gpuckpt_json
):
    small, large = kernels(2)
    hold(large, 1500)
    began = time.monotonic()
    done = gpuckpt("suspend", "--all", "--within", "1s", status=11)
    assert time.monotonic() - began < 30
    _, first, second, total = done.stdout.splitlines()
    assert first.startswith(small.id[:8])
    assert second.startswith(large.id[:8])
    assert "runs on" in second
    assert " of 2 kernels suspended in " in total
    assert "Hint: It runs on. Allow more time" in done.stderr
    # Nothing half done is left.
    assert large.worth("len(held)") == str(1500 * 10**6)
    assert states(gpuckpt_json)[large.id] == "running"
    assert large.id not in {one["kernel_id"] for one in gpuckpt_json("list")["snapshots"]}
    if states(gpuckpt_json)[small.id] == "suspended":
        gpuckpt("resume", small.id)
