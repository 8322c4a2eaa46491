"""CRIU in a wheel of its own: built, installed where nothing else is, found, and able to save and resume."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests import built_wheels
from tests.programs import COUNTER

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

ROOT = Path(__file__).parents[2]

#: Before 2.34 glibc was several libraries; newer ones have empty files of their names.
GLIBC = ("libc.so.6", "libdl.so.2", "libm.so.6", "libpthread.so.0")
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
def wheel() -> Path:
    """Return the wheel in dist/, built where it is missing or older than its sources."""
    return built_wheels.all_of_them()[1]


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


def test_the_wheel_names_the_oldest_system_it_runs_on_and_holds_its_source(
    wheel, python, installed
):
    tag = re.fullmatch(
        r"jupyter_gpuckpt_criu-([\d.]+)-py3-none-manylinux_2_28_x86_64\.whl", wheel.name
    )
    assert tag
    told = subprocess.check_output([python, "-c", METADATA], text=True)
    assert f"Version: {tag[1]}\n" in told
    assert "GPL-2.0-only" in told
    assert "@" not in told
    source = installed.parent / "source"
    (archive,) = source.glob("criu_*")
    assert hashlib.sha256(archive.read_bytes()).hexdigest() in told
    assert (source / "wheels.py").read_bytes() == (ROOT / "tools/wheels.py").read_bytes()
    for library in ("libnet", "libnl-3", "libprotobuf-c", "libuuid"):
        assert f"- {library}: <https://" in told


def test_the_program_needs_nothing_but_the_glibc_that_the_wheel_names(installed):
    lines = subprocess.check_output(["ldd", installed], text=True).splitlines()
    libraries = {Path(line.split()[0]).name for line in lines}
    assert libraries <= {"linux-vdso.so.1", "ld-linux-x86-64.so.2", *GLIBC}
    text = subprocess.check_output(["readelf", "--version-info", installed], text=True)
    assert max(int(minor) for minor in re.findall(r"Name: GLIBC_2\.(\d+)", text)) <= 28


def test_the_program_runs_in_an_empty_environment(installed, wheel):
    told = subprocess.check_output([installed, "--version"], env={}, text=True)
    assert f"Version: {wheel.name.split('-')[1]}\n" in told


def test_a_program_is_suspended_and_resumed_with_it(installed, run, engine):
    program = run(COUNTER, engine=replace(engine, criu=installed))
    program.fresh_line()
    saved = program.save(stop=True)
    before = int(program.lines()[-1])
    program.resume(saved.manifest.info.snapshot_id)
    assert int(program.lines(more_than=before)[before]) == before + 1
