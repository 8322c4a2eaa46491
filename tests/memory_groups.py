"""A control group for memory, of either version, for tests with a real limit."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.conftest import wait_for


class Group:
    """A control group for memory, of either version."""

    def __init__(self, folder: Path, *, modern: bool) -> None:
        self.folder, self._modern = folder, modern

    def limit(self, count_bytes: int) -> None:
        name = "memory.max" if self._modern else "memory.limit_in_bytes"
        (self.folder / name).write_text(str(count_bytes))

    def used(self) -> int:
        name = "memory.current" if self._modern else "memory.usage_in_bytes"
        return int((self.folder / name).read_text())

    def add(self, pid: int) -> None:
        (self.folder / "cgroup.procs").write_text(str(pid))

    def enter(self) -> tuple[str, ...]:
        """Return the words before a command that run it in this group."""
        return ("sh", "-c", f'echo $$ > {self.folder}/cgroup.procs; exec "$@"', "sh")

    def kills(self) -> int:
        path = self.folder / ("memory.events" if self._modern else "memory.oom_control")
        fields = dict(line.split() for line in path.read_text().splitlines())
        return int(fields["oom_kill"])


@contextmanager
def memory_group() -> Iterator[Group]:
    """Yield a control group. The caller must end all processes in it before the block ends."""
    root, modern = Path("/sys/fs/cgroup/memory"), False
    if not root.is_dir():
        root, modern = Path("/sys/fs/cgroup"), True
    folder = root / f"gpuckpt-test-{os.getpid()}"
    try:
        folder.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made: {error}")
    made = Group(folder, modern=modern)
    try:
        made.used()
        yield made
    except FileNotFoundError:
        pytest.skip("the controller of memory is not there")
    finally:
        wait_for(lambda: _removed(folder))


def _removed(folder: Path) -> bool:
    try:
        folder.rmdir()
    except OSError:  # a process has not quite ended
        return False
    return True
