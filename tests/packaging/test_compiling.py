"""gpuckpt-init is built with musl's compiler where that is installed, else with the machine's; both times static."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
INIT = "jupyter_gpuckpt/engine/tree/gpuckpt-init"


@pytest.fixture
def sources(tmp_path):
    """Return a copy of what is compiled and of what compiles it."""
    for path in (ROOT / "jupyter_gpuckpt").rglob("*.[chS]"):
        copy = tmp_path / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, copy)
    shutil.copy(ROOT / "hatch_build.py", tmp_path)
    return tmp_path


def built(sources, **environment):
    """Return the bytes of the init that is built in this environment."""
    kept = {name: value for name, value in os.environ.items() if name != "CC"}
    words = [sys.executable, "hatch_build.py"]
    subprocess.run(words, check=True, cwd=sources, env=kept | environment)
    return (sources / INIT).read_bytes()


@pytest.mark.slow
def test_musls_compiler_builds_what_is_static_and_nothing_else(sources, tmp_path):
    """Here a program of its name that writes down what it is asked for, and asks the machine's compiler."""
    programs = tmp_path / "bin"
    programs.mkdir()
    musl = programs / "musl-gcc"
    musl.write_text('#!/bin/sh\necho "$@" >>asked\nexec cc "$@"\n')
    musl.chmod(0o755)
    path = f"{programs}:{os.environ['PATH']}"
    built(sources, PATH=path)
    (asked,) = (sources / "asked").read_text().splitlines()
    assert "-static" in asked.split()
    assert f"{INIT}." in asked
    # Who names a compiler gets it.
    (sources / "asked").unlink()
    (sources / INIT).unlink()
    built(sources, PATH=path, CC="cc")
    assert not (sources / "asked").exists()


def test_an_init_of_musl_holds_nothing_of_glibc(sources):
    if shutil.which("musl-gcc") is None:
        pytest.skip("musl-gcc is not installed: apt-get install musl-tools")
    assert b"GLIBC_TUNABLES" in built(sources, CC="cc")
    (sources / INIT).unlink()
    assert b"GLIBC_TUNABLES" not in built(sources)
