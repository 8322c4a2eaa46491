"""What README says to do, whole, on each distribution that it names: the wheels in an empty environment, and `make demo` in a clone."""

from __future__ import annotations

import re
import shutil
import time
from pathlib import Path

import pytest

from tests import built_wheels
from tests.conftest import missing, only_for_root
from tests.systems.root_system import Distribution, RootSystem, checked

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

ROOT = Path(__file__).parents[2]
UBUNTU_KEYS = (
    "pool/main/u/ubuntu-keyring/ubuntu-keyring_2023.11.28.1_all.deb",
    "36de43b15853ccae0028e9a767613770c704833f82586f28eb262f0311adb8a8",
)
DISTRIBUTIONS = {
    "Debian 12": Distribution("bookworm"),
    "Debian 13": Distribution("trixie"),
    "Ubuntu 24.04": Distribution(
        "noble", "http://archive.ubuntu.com/ubuntu", "main universe", UBUNTU_KEYS
    ),
}


@pytest.fixture(params=DISTRIBUTIONS, scope="module")
def system(request, tmp_path_factory):
    """Return a system that has Python and make, and nothing else of what is needed."""
    only_for_root("these systems")
    if not shutil.which("mmdebstrap"):
        missing("systems", "mmdebstrap is not installed")
    system = RootSystem(DISTRIBUTIONS[request.param], tmp_path_factory.mktemp("root") / "system")
    try:
        yield system
    finally:
        system.remove()


@pytest.fixture
def timed(request):
    """Return a function that runs a step and prints how long it took."""

    def step(name, run, *words, **options):
        began = time.monotonic()
        done = run(*words, **options)
        print(f"{request.node.callspec.id}: {name}: {time.monotonic() - began:.0f} s")
        assert done.returncode == 0, done.stdout
        return done.stdout

    return step


def test_wheels_are_all_that_an_ordinary_user_needs(system, timed):
    wheels = {path.parent for path in built_wheels.all_of_them()}
    dist = system.put(wheels.pop())
    timed("venv", system.run, "python3", "-m", "venv", "env")
    wanted = ["jupyter-gpuckpt[criu]", "ipykernel"]
    timed("pip", system.run, "env/bin/pip", "install", "-q", "--find-links", f"{dist}", *wanted)
    told = timed("doctor", system.run, "env/bin/jupyter", "gpuckpt", "doctor")
    print(told)
    assert "Kernels can be saved here" in told
    assert "jupyter_gpuckpt_criu/criu" in told
    check = system.put(Path(__file__).with_name("kernel_check.py"))
    told = timed("save, suspend, resume", system.run, "env/bin/python", f"{check}")
    assert told.endswith("value: 42\n"), told


def test_the_demo_of_a_clone_says_what_it_needs_and_succeeds_with_it(system, timed, tmp_path):
    clone = tmp_path / "clone"
    # Also of a checkout that belongs to another user.
    checked(
        ["git", "-c", "safe.directory=*", "clone", "--quiet", "--no-local", str(ROOT), str(clone)]
    )
    system.put(clone)
    demo = ["make", "-C", "clone", "demo"]
    refused = system.run(*demo)
    hint = re.search(r"hint: as root, or let an administrator: (.*)\n", refused.stdout)
    assert refused.returncode
    assert hint, refused.stdout
    timed("packages", system.run, "sh", "-c", f"apt-get -qq update && {hint[1]}", root=True)
    told = timed("demo", system.run, *demo)
    print(told)
    assert "everything is as it was" in told
