"""Snapshots of running programs resume for ever: with today's engine they come back and go on.

When one of these fails after the first release, the change that made it fail would take from users the snapshots that they have. Before
it, run `make golden`.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from jupyter_gpuckpt.engine.gpu.driver import cuda
from jupyter_gpuckpt.engine.tree import launch
from jupyter_gpuckpt.engine.tree.tree import Tree
from jupyter_gpuckpt.host import machine_profile
from jupyter_gpuckpt.snapshots.imports import import_archive
from jupyter_gpuckpt.snapshots.resume import resume
from jupyter_gpuckpt.snapshots.save import save
from jupyter_gpuckpt.store.local import LocalStore
from jupyter_gpuckpt.wire.manifest_records import Cause, Manifest, SaveOptions
from jupyter_gpuckpt.wire.progress import Progress
from tests.conftest import wait_for
from tests.engine.scripted_driver import RUNNING, Memory
from tests.golden.programs import FILES, asked, scripted_gpu

KNOWN = json.loads((FILES / "programs.json").read_text())


@pytest.fixture
def store(tmp_path: Path) -> Iterator[LocalStore]:
    """Yield a store into which the snapshots were imported."""
    with LocalStore(tmp_path / "store") as store:
        import_archive(store, io.BytesIO((FILES / "snapshots.tar").read_bytes()).read)
        yield store


class Back:
    """A program that is brought back from one of the snapshots; it is killed at the end of a `with` block."""

    def __init__(self, store, engine, folder):
        self.store, self.engine, self._folder = store, engine, folder
        self._trees: list[Tree] = []

    def find(self, name) -> Manifest:
        (info,) = [each for each in self.store.snapshots() if each.name == name]
        found = self.store.manifest(info.snapshot_id)
        lacks = set(filter(machine_profile._is_instruction, found.host.cpu_flags))
        lacks -= set(machine_profile.host().cpu_flags)
        if lacks:
            pytest.skip(f"this machine's processor lacks {', '.join(sorted(lacks))}")
        return found

    def resume(self, manifest):
        path = self._folder / f"exit-{len(self._trees)}"
        back = resume(manifest, self.store, self.engine, exit_path=path, progress=Progress())
        self._trees.append(back.tree)
        assert back.warnings == []
        return back.tree

    def suspend(self, tree, manifest) -> Manifest:
        options = SaveOptions(stop=True, name="again", cause=Cause.MANUAL)
        saved = save(tree, manifest.launch, self.store, self.engine, options, progress=Progress())
        return saved.manifest

    def end(self):
        for tree in self._trees:
            launch.kill(tree)


@pytest.fixture
def back(store, engine, tmp_path) -> Iterator[Back]:
    found = Back(store, engine, tmp_path)
    yield found
    found.end()


def assert_goes_on(tree, known, *, counts):
    digest, counted, of_child, *waiting = asked(tree)
    before = known[1:3]
    assert (digest, waiting) == (known[0], known[3:])
    assert int(counted) >= int(before[0])
    assert int(of_child) >= int(before[1])
    if counts:
        wait_for(
            lambda: all(
                int(new) > int(old)
                for new, old in zip(asked(tree)[1:3], (counted, of_child), strict=True)
            )
        )


@pytest.mark.parametrize("name", ["idle", "busy"])
def test_a_program_is_as_it_was_goes_on_and_is_suspended_and_resumed_again(back, name):
    known = KNOWN[name]
    manifest = back.find(name)
    for _ in range(2):
        tree = back.resume(manifest)
        assert_goes_on(tree, known, counts=name == "busy")
        manifest = back.suspend(tree, manifest)


def test_memory_of_a_gpu_comes_back(back):
    known = KNOWN["gpu"]
    states = {int(number): state for number, state in known["states"].items()}
    taken = {int(number): held for number, held in known["taken"].items()}
    with scripted_gpu() as driver:
        driver.come_back(Memory(states, taken))
        manifest = back.find("gpu")
        for _ in range(2):
            # Restore fails where the staging file holds another byte than the driver put there.
            tree = back.resume(manifest)
            assert set(driver.states.values()) == {RUNNING}
            assert cuda.is_cuda_process(tree.kernel_pid)
            before = driver.ticks(tree.kernel_pid)
            wait_for(lambda tree=tree, before=before: driver.ticks(tree.kernel_pid) > before)
            manifest = back.suspend(tree, manifest)
