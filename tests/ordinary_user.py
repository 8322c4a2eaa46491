"""The tests that an ordinary user runs in root's run of the suite (tests/test_ordinary_user.py)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.as_user import ROOT

#: What takes long, and the same way for every user.
SLOW = ("cycles_leave", "rewritten", "pools", "dask", "does_not_end")
#: Tests that are slow ones for the user.
RARE = ("scattered", "several_processes")
#: Files whose steps are the same for every user. Rights matter where a tree is launched, seized, put back and cleaned up.
THE_SAME = {
    ROOT / "tests/engine/test_gpu_order.py",
    *(
        ROOT / f"tests/snapshots/test_{name}.py"
        for name in (
            *("clusters", "criu_killed_in_a_task", "criu_wheel", "file_locks", "hard_state"),
            *("hidden_pages", "taken_names"),
            *("hostile_snapshots", "inner_connections", "memory_limits"),
            *("rehearsal", "replaced_programs", "shared_pages", "shared_state"),
            *("signals_at_a_resume", "unseen"),
        )
    ),
}
CRASHES = ROOT / "tests/daemon/test_crashes_at_every_step.py"
#: Crashes in steps that a user takes in another way.
OTHER_WAYS = ("freeze", "capture", "images", "restore", "pages", "go", "write")
#: One crash in each of them.
ONE_OF_EACH = (
    *("suspend-freeze", "save-capture", "resume-images", "resume-restore", "resume-pages"),
    *("save-write", "resume-go", "resume-write"),
)


class Part(NamedTuple):
    """Files by a pattern, and the words by which `pytest -k` chooses among their tests."""

    pattern: str
    without: tuple[str, ...] = ()
    only: tuple[str, ...] = ()

    def paths(self) -> set[Path]:
        """Return the files that match."""
        return {*ROOT.glob(self.pattern)}

    def expression(self) -> str:
        """Return the words for `pytest -k`."""
        return " or ".join(self.only) or " and ".join(f"not {word}" for word in self.without)

    def takes(self, name: str) -> bool:
        """Return whether the words choose a test of this name."""
        chosen = not self.only or any(word in name for word in self.only)
        return chosen and not any(word in name for word in self.without)


PARTS = {
    "GPU memory": Part("tests/engine/test_gpu_order*.py"),
    "snapshots, a to h": Part("tests/snapshots/test_[a-h]*.py", (*SLOW, *RARE)),
    "snapshots, i to r": Part("tests/snapshots/test_[i-r]*.py", (*SLOW, *RARE)),
    "snapshots, s to z": Part("tests/snapshots/test_[s-z]*.py", (*SLOW, *RARE)),
    "crashes": Part(str(CRASHES.relative_to(ROOT)), only=ONE_OF_EACH),
}


def in_a_part(items: list[pytest.Item]) -> Iterator[pytest.Item]:
    """Yield the tests that the user runs in a part, without those that a user skips: they mount a file system, or say so."""
    chosen = {path: part for part in PARTS.values() for path in part.paths() - THE_SAME}
    for item in items:
        part = chosen.get(item.path)
        if part is None or not part.takes(item.name) or item.get_closest_marker("skipif"):
            continue
        if "small_disk" not in getattr(item, "fixturenames", ()):
            yield item
