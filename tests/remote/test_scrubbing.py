"""What the scrub finds in the packs of the store, tells and repairs."""

from __future__ import annotations

import os
import subprocess

import pytest

from jupyter_gpuckpt.daemon.scrub import scrubbing
from jupyter_gpuckpt.daemon.scrub.scrubbing import Scrubbing
from jupyter_gpuckpt.errors import ObjectCorrupt, StoreUnavailable
from jupyter_gpuckpt.host import idle_priority, own_programs
from jupyter_gpuckpt.store.damage import damaged_snapshots
from tests.parameters import some_slow
from tests.remote.test_near_copy import BYTES, near, share  # noqa: F401
from tests.unit.test_store_pack_checks import flip, flip_silently, pack_paths, truncate, zero


@pytest.fixture
def started(monkeypatch):
    """Return the processes that read packs, as they are started."""
    found: list[subprocess.Popen[bytes]] = []
    spawn = own_programs.spawn

    def noted(*arguments, **options):
        found.append(spawn(*arguments, **options))
        return found[-1]

    monkeypatch.setattr(own_programs, "spawn", noted)
    return found


def scrub_of(m, is_busy=lambda: False, every_seconds=0.0):
    """Return the scrub of a machine, by which all packs are due."""
    m.store.snapshots()  # it is open
    return Scrubbing(m.data_dir, m.machine, m.uploads, is_busy, every_seconds)


def told_by(m, monkeypatch):
    """Return the ids of the snapshots whose change is told to clients from now on."""
    found: list[str] = []
    monkeypatch.setattr(m.store, "on_change", lambda change: found.append(change.snapshot_id))
    return found


def remove(path):
    path.unlink()


@pytest.mark.parametrize(
    "damage", some_slow([flip_silently, flip, zero, truncate, remove], [flip_silently])
)
def test_damage_is_found_told_and_repaired_from_a_remote(near, monkeypatch, damage):  # noqa: F811
    async def test(m):
        told, scrub = told_by(m, monkeypatch), scrub_of(m)
        before = m.store.space().disk_bytes
        first = pack_paths(m.store)[0]
        damage(first)
        repair = scrubbing.remote_copies.repair
        seen = []

        def noted(*arguments):
            seen.append((m.store.space().damaged, damaged_snapshots(m.store.root)))
            repair(*arguments)

        monkeypatch.setattr(scrubbing.remote_copies, "repair", noted)
        await scrub.look()
        assert seen == [(["s1"], ["s1"])]
        assert told == ["s1", "s1"]
        for name in ("s1", "s2", "s3"):
            m.store.verify(name)
        assert damaged_snapshots(m.store.root) == m.store.space().damaged == []
        if damage is not remove:
            fetched = m.store.space().disk_bytes - before
            assert fetched < BYTES
        await scrub.look()
        assert len(seen) == 1
        m.store.collect()
        m.store.verify("s1")
        await scrub.close()

    near(test)


def test_a_repair_that_fails_is_tried_again_later(near, monkeypatch):  # noqa: F811
    async def test(m):
        scrub, attempts = scrub_of(m), []
        flip_silently(pack_paths(m.store)[0])

        def fail(*arguments):
            attempts.append(arguments)
            raise StoreUnavailable("It does not answer.")

        with monkeypatch.context() as patched:
            patched.setattr(scrubbing.remote_copies, "repair", fail)
            await scrub.look()
        assert len(attempts) == 1
        assert damaged_snapshots(m.store.root) == ["s1"]
        again = scrub_of(m)  # as by the next daemon
        await again.look()
        m.store.verify("s1")
        assert damaged_snapshots(m.store.root) == []
        await scrub.close()
        await again.close()

    near(test)


def test_without_a_remote_the_next_save_repairs(near, monkeypatch):  # noqa: F811
    async def test(m):
        m.save(4, upload=False)
        told, scrub = told_by(m, monkeypatch), scrub_of(m)
        flip_silently(pack_paths(m.store)[-1])
        await scrub.look()
        assert m.store.space().damaged == ["s4"]
        with pytest.raises(ObjectCorrupt):
            m.store.verify("s4")
        m.store.delete("s4")
        m.save(4, upload=False)
        await scrub.look()
        m.store.verify("s4")
        assert m.store.space().damaged == []
        assert told[0] == "s4"
        await scrub.close()

    near(test)


def test_it_waits_while_a_user_waits_for_other_work(near, monkeypatch, started):  # noqa: F811
    async def test(m):
        monkeypatch.setattr(scrubbing, "_BUSY_SECONDS", 0.01)
        answers = iter([True] * 5)
        asked = []

        def is_busy():
            asked.append(len(m.store.pack_checks.due(0)))
            return next(answers, False)

        scrub = scrub_of(m, is_busy)
        flip_silently(pack_paths(m.store)[0])
        await scrub.look()
        assert len(asked) > 5 + len(pack_paths(m.store))
        assert [process.poll() is not None for process in started] == [True]
        await scrub.close()

    near(test)


def test_it_reads_at_the_lowest_priority_and_survives_the_loss_of_its_process(
    near,  # noqa: F811
    started,
):
    async def test(m):
        kills = []

        def is_busy():
            if started and not kills:
                kills.append(os.getpriority(os.PRIO_PROCESS, started[0].pid))
                if kills[0] == idle_priority.NICE:
                    started[0].kill()
                else:
                    kills.clear()  # it is starting
            return False

        scrub = scrub_of(m, is_busy, every_seconds=1e9)
        for path in pack_paths(m.store):
            path.touch()
        is_lost = False
        while not is_lost:
            try:
                await scrub.look()
            except StoreUnavailable as error:
                is_lost = "has ended" in str(error)
            else:  # all was read before the process had its priority
                started.clear()
                for path in pack_paths(m.store):
                    path.touch()
        await scrub.look()
        assert m.store.pack_checks.due(1e9) == []
        assert len(started) == 2
        await scrub.look()
        assert len(started) == 2
        await scrub.close()

    near(test)


def test_a_store_that_nobody_needs_is_not_opened(near, started):  # noqa: F811
    async def test(m):
        m.machine.close()
        scrub = Scrubbing(m.data_dir, m.machine, m.uploads, lambda: False, 0.0)
        await scrub.look()
        assert m.machine.opened_store is None
        assert not started
        await scrub.close()

    near(test)
