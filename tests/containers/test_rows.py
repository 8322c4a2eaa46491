"""In every container a kernel is saved and resumed, or started plainly with the reason and what changes it: never a failure later."""

from __future__ import annotations

import os
import shlex
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from tests.conftest import missing, only_for_root
from tests.containers.docker import Docker
from tests.containers.podman import Podman
from tests.containers.report import VARIABLE, Line
from tests.containers.rootless import RootlessPodman
from tests.containers.rows import ROWS, Row


@pytest.fixture(scope="session")
def folder(criu: Path) -> Iterator[Path]:
    """Yield a folder that every user may enter: users of a container are others, and pytest's own folders are closed to them."""
    with tempfile.TemporaryDirectory(prefix="gpuckpt-c-") as made:
        Path(made).chmod(0o755)
        yield Path(made)


@pytest.fixture(scope="session")
def podman(folder: Path) -> Podman:
    """Return a podman whose containers are ours alone."""
    only_for_root("containers on an overlay of /")
    found = Podman(folder)
    if obstacle := found.obstacle():
        missing("podman", obstacle)
    return found


@pytest.fixture(scope="session")
def rootless(folder: Path, podman: Podman) -> Podman:
    """Return the podman of an ordinary user."""
    home = folder / "user"  # podman wants paths of at most 50 characters
    home.mkdir()
    found = RootlessPodman(home)
    if obstacle := found.obstacle():
        missing("podman", obstacle)
    return found


@pytest.fixture(scope="session")
def docker(folder: Path) -> Iterator[Docker]:
    """Yield a docker daemon of our own."""
    if obstacle := Docker.obstacle():
        missing("docker", obstacle)
    home = folder / "docker"
    home.mkdir()
    found = Docker(home)
    try:
        found.begin()
        yield found
    finally:
        found.end()


def keep(row: Row, reason: str, hint: str) -> None:
    """Add a line for the page, where one is asked for."""
    if path := os.environ.get(VARIABLE):
        with Path(path).open("ab", buffering=0) as file:
            file.write(msgspec.json.encode(Line(row.name, reason, hint)) + b"\n")


@pytest.mark.parametrize(
    "row",
    [
        pytest.param(row, id=row.name, marks=() if row.quick else (pytest.mark.slow,))
        for row in ROWS
    ],
)
def test_a_kernel_is_saved_or_its_start_says_why_not(
    row: Row, request: pytest.FixtureRequest
) -> None:
    engine: Podman | Docker = request.getfixturevalue(row.engine)
    found = engine.run(shlex.split(row.options), foreign_root=row.own_users)
    assert found.report.engine_available == (not row.refused), found.report.reason
    assert found.plain_reason == found.report.reason
    assert found.plain_hint == found.report.hint
    if row.refused:
        for words in row.refused:
            assert words in found.plain_reason
        assert row.mend in found.plain_hint
        assert found.printed == ["21\n"], "the kernel that was started plainly"
    else:
        assert found.printed == ["21\n"] * 3
    keep(row, found.plain_reason, found.plain_hint)


def test_every_row_has_a_name_of_its_own() -> None:
    assert len({row.name for row in ROWS}) == len(ROWS)
