"""The wheel: built from the committed files alone, installed where nothing else is, and used there."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.cli.conftest import Kernel

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

ROOT = Path(__file__).parents[2]
#: Compiled files in the wheel.
COMPILED = {
    "jupyter_gpuckpt/engine/criu/criu-preload.so",
    "jupyter_gpuckpt/engine/gpu/ferry/gpu-ferry.so",
    "jupyter_gpuckpt/engine/tree/gpuckpt-init",
    "jupyter_gpuckpt/engine/tree/outside-signals.so",
    "jupyter_gpuckpt/store/byte-groups.so",
}


def ran(*words, **options):
    """Return what a program printed; it must succeed."""
    done = subprocess.run(
        list(map(str, words)), capture_output=True, text=True, check=False, **options
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def fresh(folder, *packages):
    """Return the Python of a new environment that holds these packages and what they need."""
    ran(sys.executable, "-m", "venv", folder)
    python = folder / "bin/python"
    ran(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages)
    return python


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """Return the only file that `python -m build --wheel` makes of a copy of what is committed."""
    folder = tmp_path_factory.mktemp("wheel")
    # Also in a checkout that belongs to another user.
    git = ["git", "-c", "safe.directory=*"]
    listed = ran(*git, "ls-files", "-z", cwd=ROOT).split("\0")
    for name in filter(None, listed):
        copy = folder / "source" / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, copy)
    builder = fresh(folder / "builder", "build")
    ran(builder, "-m", "build", "--wheel", "--outdir", folder / "dist", folder / "source")
    (found,) = (folder / "dist").iterdir()
    return found


@pytest.fixture(scope="module")
def python(wheel, tmp_path_factory) -> Path:
    """Return the Python of an environment with the wheel, a kernel and nothing of the checkout."""
    return fresh(tmp_path_factory.mktemp("installed") / "env", wheel, "ipykernel")


def test_the_wheel_belongs_to_its_platform_and_holds_what_is_compiled_and_the_front_end(wheel):
    version = json.loads((ROOT / "labextension/package.json").read_text())["version"]
    assert wheel.name == f"jupyter_gpuckpt-{version}-py3-none-linux_{os.uname().machine}.whl"
    with zipfile.ZipFile(wheel) as archive:
        modes = {one.filename: one.external_attr >> 16 for one in archive.infolist()}
        names = set(modes)
        text = archive.read(next(name for name in names if name.endswith("/WHEEL"))).decode()
    assert names >= COMPILED
    assert modes["jupyter_gpuckpt/engine/tree/gpuckpt-init"] & 0o111
    assert "Root-Is-Purelib: false" in text
    assert any(name.endswith("labextensions/jupyter-gpuckpt/package.json") for name in names)
    assert any("etc/jupyter/jupyter_server_config.d/" in name for name in names)
    assert not [name for name in names if name.startswith(("tests/", "labextension/", "build/"))]


def test_shells_and_man_find_their_files_in_the_environment(python):
    share = python.parents[1] / "share"
    bash = share / "bash-completion/completions/jupyter-gpuckpt"
    script = f"""
source {bash}
COMP_WORDS=(jupyter-gpuckpt remote cr) COMP_CWORD=2
_shtab_jupyter_gpuckpt
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
    assert ran("bash", "-c", script).split() == ["create"]
    assert (
        "#compdef jupyter-gpuckpt\n" in (share / "zsh/site-functions/_jupyter-gpuckpt").read_text()
    )
    fish = (share / "fish/vendor_completions.d/jupyter-gpuckpt.fish").read_text()
    assert "complete -c jupyter-gpuckpt" in fish
    page = (share / "man/man1/jupyter-gpuckpt.1").read_text()
    assert page.startswith('.TH JUPYTER\\-GPUCKPT "1"')
    assert "COMMAND" in page


def test_it_is_used_where_nothing_else_is(python, daemon_env):
    env = {name: value for name, value in daemon_env.items() if name != "PYTHONPATH"}
    env["PATH"] = f"{python.parent}:/usr/bin:/bin"
    here = {"cwd": python.parent, "env": env}
    place = ran(python, "-c", "import jupyter_gpuckpt; print(jupyter_gpuckpt.__file__)", **here)
    assert place.startswith(str(python.parents[1]))
    report = json.loads(ran(python.parent / "jupyter", "gpuckpt", "doctor", "--json", **here))
    assert report["host"]["engine_available"], report
    kernel = Kernel(env, str(python))
    try:
        assert kernel.worth("globals().__setitem__('x', 41)") == "None"
        for verb in ("save", "suspend", "resume"):
            ran(python.parent / "jupyter-gpuckpt", verb, kernel.id, **here)
        assert kernel.worth("x + 1") == "42"
    finally:
        kernel.end()
