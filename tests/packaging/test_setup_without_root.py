"""The set-up needs root for nothing but packages that are missing, and says which."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from jupyter_gpuckpt.host import criu_program
from tests.conftest import missing

ROOT = Path(__file__).parents[2]
TOOLS = ROOT / "tools"
NOBODY = 65534


def ask(words, **environment):
    done = subprocess.run(
        words, capture_output=True, text=True, check=False, env=os.environ | environment, cwd=ROOT
    )
    return done.returncode, done.stdout, done.stderr


@pytest.fixture
def sudo(tmp_path):
    """Return a fake sudo that refuses, and leaves a mark when it is called."""
    program, mark = tmp_path / "sudo", tmp_path / "asked"
    program.write_text(f'#!/bin/sh\necho "$@" >>{mark}\nexit 1\n')
    program.chmod(0o755)
    return program, mark


def test_nobody_becomes_root_where_all_packages_are_there(sudo):
    program, mark = sudo
    assert ask([TOOLS / "system-packages", "bash", "dpkg"], SUDO=str(program)) == (0, "", "")
    assert not mark.exists()


def test_a_missing_package_is_named_with_a_line_that_installs_it(sudo):
    program, mark = sudo
    words = [TOOLS / "system-packages", "bash", "gpuckpt-missing-1", "gpuckpt-missing-2"]
    status, _, told = ask(words, SUDO=str(program))
    assert status == 1
    assert "missing packages: gpuckpt-missing-1 gpuckpt-missing-2\n" in told
    line = "apt-get install --yes --no-install-recommends gpuckpt-missing-1 gpuckpt-missing-2"
    assert f"as root, or let an administrator: {line}\n" in told
    assert mark.read_text() == "apt-get -qq update\n"
    _, _, told = ask(words, SUDO="/nowhere/sudo")
    assert "there is no /nowhere/sudo\n" in told


def test_an_ordinary_user_is_given_the_criu_that_is_there(sudo, short_dir):
    program, mark = sudo
    criu = criu_program.find()
    if criu is None:
        missing("criu", "no CRIU >= 4.2 was found: run tools/install-criu")
    short_dir.chmod(0o755)
    built = short_dir / "jupyter-gpuckpt/criu/sbin/criu"
    built.parent.mkdir(parents=True)
    shutil.copy(criu, built)
    script = short_dir / "install-criu"  # the checkout may lie where others cannot look
    shutil.copy(TOOLS / script.name, script)
    settings = {"XDG_CACHE_HOME": str(short_dir), "SUDO": str(program), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        [script], capture_output=True, text=True, check=False, env=settings, cwd="/",
        user=NOBODY if os.geteuid() == 0 else None,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, f"{built}\n"), done.stderr
    assert not mark.exists()


@pytest.mark.parametrize("version", [(4, 1, 1), criu_program.MINIMUM])
def test_a_criu_that_is_too_old_is_built_anew_and_what_that_needs_is_known_before(
    tmp_path, version
):
    """Whoever waits for a set-up must not be told in its middle that a package is missing."""
    criu = tmp_path / "criu"
    criu.write_text(f"#!/bin/sh\necho Version: {criu_program.dotted(version)}\n")
    criu.chmod(0o755)
    status, told, _ = ask(
        [TOOLS / "install-criu", "--packages"],
        XDG_CACHE_HOME=str(tmp_path),
        PATH=f"{tmp_path}:/usr/bin:/bin",
    )
    assert status == 0
    assert ("libnet1-dev" in told.split()) == (version < criu_program.MINIMUM)


def checkout(folder, sudo, *dist):
    """Make what `make` looks at, with these files in dist, and return variables in which there is no compiler and no CRIU."""
    shutil.copytree(TOOLS, folder / "tools")
    for name in ("Makefile", "pyproject.toml", "hatch_build.py", "labextension/package.json"):
        (folder / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    (folder / "dist").mkdir()
    for name in dist:
        (folder / "dist" / name).touch()
    nothing = {"CC": "/nowhere/cc", "XDG_CACHE_HOME": str(folder), "PATH": "/usr/bin:/bin"}
    return {**nothing, "SUDO": str(sudo)}


def test_all_missing_packages_of_a_demo_are_named_at_once(sudo, tmp_path):
    """The fake dpkg-query knows no package, and the fake sudo refuses."""
    environment = checkout(tmp_path, sudo[0])
    (tmp_path / "dpkg-query").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "dpkg-query").chmod(0o755)
    environment["PATH"] = f"{tmp_path}:{environment['PATH']}"
    status, _, told = ask(["make", "-C", tmp_path, "demo"], **environment)
    assert status != 0
    [line] = [line for line in told.splitlines() if line.startswith("== missing packages: ")]
    assert {"gcc", "libc6-dev", "libnet1-dev", "libprotobuf-c-dev"} <= set(line.split())
    assert not (tmp_path / ".venv").exists()


def test_a_demo_with_wheels_needs_no_packages_to_compile(sudo, tmp_path):
    wheels = "jupyter_gpuckpt-1-py3-none-any.whl", "jupyter_gpuckpt_criu-4.2-py3-none-any.whl"
    environment = checkout(tmp_path, sudo[0], *wheels)
    status, told, error = ask(["make", "-C", tmp_path, "--dry-run", "demo"], **environment)
    assert status == 0, error
    assert "gcc" not in told
    assert "libnet1-dev" not in told
    assert f"install-packages  'dist/{wheels[0]}[lab]'" in told
    assert f"install-packages dist/{wheels[1]}" in told
    assert "install-criu" not in told


@pytest.mark.parametrize("target", ["demo", "lab", "test"])
def test_make_runs_everything_as_whoever_runs_it(target):
    status, told, error = ask(["make", "--dry-run", "--always-make", target])
    assert status == 0, error
    assert "sudo" not in told
    assert ("'.[lab]'" in told, "'.[test]'" in told) == (True, target == "test")


def test_what_only_tests_need_is_no_part_of_the_demo():
    told = (ROOT / "pyproject.toml").read_text()
    lab = told.partition("\nlab = [")[2].partition("]")[0]
    assert "playwright" not in lab
    assert "jupyterhub" not in lab
