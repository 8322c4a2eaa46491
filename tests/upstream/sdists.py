"""Fetches the sdists of the installed versions: wheels have no tests."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from .suites import Suite


def cache_dir() -> Path:
    """Below `$XDG_CACHE_HOME`, else ~/.cache (XDG base directory specification)."""
    above = os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()
    return Path(above) / "jupyter-gpuckpt" / "upstream"


def unpacked(suite: Suite) -> Path:
    """Return the directory with the suite's tests and settings, fetched from the package index when it is not there."""
    directory = cache_dir() / f"{suite.distribution}-{suite.version}"
    if not directory.is_dir():
        directory.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=directory.parent) as folder:
            complete = Path(folder, "complete")
            _unpack(_download(suite, Path(folder)), suite, complete)
            complete.rename(directory)
    return directory


def _download(suite: Suite, folder: Path) -> Path:
    wanted = f"{suite.distribution}=={suite.version}"
    print(f"== fetching the sdist of {wanted}", flush=True)
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    subprocess.run(
        [*pip, "--no-deps", "--no-binary", ":all:", "--dest", str(folder), wanted],
        check=True,
        # pip builds the metadata, too; that of jupyter_server needs no front end for it.
        env={**os.environ, "HATCH_JUPYTER_BUILDER_SKIP_NPM": "1"},
    )
    [sdist] = folder.glob("*.tar.gz")
    return sdist


def _unpack(sdist: Path, suite: Suite, directory: Path) -> None:
    """Only the tests: the package of the sdist would take the place of the installed one."""
    staging = directory.with_name("staging")
    with tarfile.open(sdist) as archive:
        top = os.path.commonpath(archive.getnames())
        wanted = tuple(f"{top}/{name}" for name in suite.keep)
        members = [member for member in archive if member.name.startswith(wanted)]
        archive.extractall(staging, members, filter="data")
    shutil.move(staging / top, directory)
