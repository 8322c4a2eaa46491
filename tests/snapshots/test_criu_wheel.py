"""CRIU in a wheel of its own: built, installed where nothing else is, found, and able to save and resume."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.conftest import missing
from tests.programs import COUNTER

ROOT = Path(__file__).parents[2]
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser())
BUILD = CACHE / "jupyter-gpuckpt/criu/BUILD"

FIND = """
import json, jupyter_gpuckpt_criu
from jupyter_gpuckpt.host import criu_program
print(json.dumps([str(jupyter_gpuckpt_criu.CRIU), [str(path) for path in criu_program.candidates()]]))
"""
METADATA = """
from importlib.metadata import distribution
print(distribution("jupyter-gpuckpt-criu").read_text("METADATA"))
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """Return the wheel of the CRIU that was built for `make setup`."""
    if not BUILD.exists():
        missing("criu-wheel", "no CRIU was built here: run tools/install-criu --own")
    for tool in ("auditwheel", "hatchling"):
        if importlib.util.find_spec(tool) is None:
            missing("criu-wheel", f"{tool} is not installed: pip install -e '.[test]'")
    folder = tmp_path_factory.mktemp("dist")
    words = [sys.executable, ROOT / "tools/criu-wheel/build.py", folder]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    path = Path(done.stdout.splitlines()[-1])
    assert list(folder.iterdir()) == [path]
    return path


@pytest.fixture(scope="module")
def python(wheel, tmp_path_factory) -> Path:
    """Return a fresh environment that has the wheel and nothing else."""
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    python = folder / "bin/python"
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet"]
    subprocess.run([*pip, "--no-index", "--no-deps", wheel], check=True)
    return python


@pytest.fixture(scope="module")
def installed(python) -> Path:
    """Return the program, as the project finds it in that environment."""
    environment = {"PYTHONPATH": str(ROOT), "PATH": "/nowhere"}
    told = subprocess.check_output([python, "-c", FIND], env=environment, text=True)
    path, candidates = json.loads(told)
    assert candidates[-1] == path
    assert Path(path).is_relative_to(python.parents[1])
    return Path(path)


def test_the_wheel_names_the_oldest_system_it_runs_on_and_its_source(wheel, python):
    tag = re.fullmatch(
        r"jupyter_gpuckpt_criu-4[\d.]+-py3-none-manylinux_2_(\d+)_x86_64\.whl", wheel.name
    )
    assert tag
    told = subprocess.check_output(
        [python, "-c", METADATA],
        text=True,
    )
    build = dict(line.split(" ", 1) for line in BUILD.read_text().splitlines())
    assert f"Version: {build['version']}\n" in told
    assert "GPL-2.0-only" in told
    assert build["sha256"] in told
    assert build["from"] in told
    assert "@" not in told


def test_the_program_needs_nothing_but_glibc_in_the_version_that_the_wheel_names(wheel, installed):
    lines = subprocess.check_output(["ldd", installed], text=True).splitlines()
    libraries = {Path(line.split()[0]).name for line in lines}
    assert libraries <= {"linux-vdso.so.1", "libc.so.6", "libm.so.6", "ld-linux-x86-64.so.2"}
    text = subprocess.check_output(["readelf", "--version-info", installed], text=True)
    newest = max(int(minor) for minor in re.findall(r"Name: GLIBC_2\.(\d+)", text))
    assert f"-manylinux_2_{newest}_x86_64" in wheel.name


def test_the_program_runs_in_an_empty_environment(installed):
    told = subprocess.check_output([installed, "--version"], env={}, text=True)
    version = re.search(r"Version: (\S+)", told)
    assert version
    assert f"version {version[1]}\n" in BUILD.read_text()


def test_a_program_is_suspended_and_resumed_with_it(installed, run, engine):
    program = run(COUNTER, engine=replace(engine, criu=installed))
    program.fresh_line()
    saved = program.save(stop=True)
    before = int(program.lines()[-1])
    program.resume(saved.manifest.info.snapshot_id)
    assert int(program.lines(more_than=before)[before]) == before + 1
