"""Ready copies give way: where a resume lacks room they are ended and it is tried again, once, and no other is made for a while."""

from contextlib import nullcontext
from typing import Any

import pytest

from jupyter_gpuckpt.daemon.kernels import ready_trees
from jupyter_gpuckpt.daemon.kernels.machine import Machine
from jupyter_gpuckpt.daemon.kernels.ready_trees import ReadyTree, ReadyTrees
from jupyter_gpuckpt.engine.tree.tree import Tree
from jupyter_gpuckpt.errors import HostIncompatible, ThawFailed
from jupyter_gpuckpt.wire.daemon_settings import Settings
from jupyter_gpuckpt.wire.place import this_place
from jupyter_gpuckpt.wire.protocol import WantedCopies

WANTED = WantedCopies("snapshot", 2)


@pytest.fixture
def killed(monkeypatch):
    """Return the pids of the trees that were ended; a tree with an odd pid has ended by itself."""
    found = []
    monkeypatch.setattr(ready_trees.trees, "kill", lambda tree: found.append(tree.init_pid))
    monkeypatch.setattr(ready_trees.trees, "alive", lambda tree: tree.init_pid % 2 == 0)
    return found


def copy_of(pid, owner="server"):
    return ReadyTree(owner, WANTED, Tree(pid, 1, pid, 1, pid, 1, f"/exits/{pid}"), [], {}, "/log")


def test_a_copy_is_taken_once_and_only_if_it_lives(killed):
    ready = ReadyTrees()
    for pid in (3, 4, 6):
        ready.add(copy_of(pid))
    assert ready.count("server", WANTED) == 3
    assert ready.count("other", WANTED) == 0
    assert ready.take(lambda one: True).tree.init_pid == 4
    assert killed == [3]
    assert ready.take(lambda one: one.owner_id == "other") is None
    assert ready.take(lambda one: True).tree.init_pid == 6
    assert ready.take(lambda one: True) is None


def test_copies_that_were_given_up_are_not_made_again_at_once(killed, monkeypatch):
    ready, now = ReadyTrees(), 1000.0
    monkeypatch.setattr(ready_trees.time, "monotonic", lambda: now)
    assert not ready.give_up()
    assert ready.may_grow
    ready.add(copy_of(2))
    ready.add(copy_of(4))
    assert ready.give_up()
    assert killed == [2, 4]
    assert not ready.may_grow
    now += 61
    assert ready.may_grow


@pytest.mark.parametrize("error", [HostIncompatible("no room"), ThawFailed("broken")])
@pytest.mark.parametrize("any_ready", [True, False])
def test_a_resume_without_room_gets_that_of_ready_copies(error, any_ready, killed, tmp_path):
    ready = ReadyTrees()
    machine = Machine(
        Settings(str(tmp_path)),
        this_place(tmp_path),
        ready=ready,
        local_chunks=lambda *_: nullcontext(),
    )
    if any_ready:
        ready.add(copy_of(2))
    attempts = []

    def resume() -> Any:
        attempts.append(list(killed))
        if len(attempts) == 1:
            raise error
        return "resumed"

    try:
        if any_ready and isinstance(error, HostIncompatible):
            resumed: Any = machine._with_room(resume)
            assert resumed == "resumed"
            assert attempts == [[], [2]]
        else:
            with pytest.raises(type(error)):
                machine._with_room(resume)
            assert attempts == [[]]
    finally:
        machine.close()
