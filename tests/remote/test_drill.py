"""A drill finds what cannot be fetched, in files and in S3, and says what it has read."""

from __future__ import annotations

import json
import random
from contextlib import closing

import pytest

from jupyter_gpuckpt.cli import app
from jupyter_gpuckpt.remote import drill
from jupyter_gpuckpt.wire.remote_records import Remote
from tests.remote.installations import save, some_chunks, store_of
from tests.remote.joined import join
from tests.remote.stores import FACTS, Machine, chunks


@pytest.fixture
def machine(bucket, tmp_path):
    """Return a machine that has uploaded three snapshots."""
    with closing(Machine(bucket, tmp_path / "machine")) as found:
        for number in range(3):
            found.save(f"s{number}", *chunks(number))
            found.upload(f"s{number}")
        yield found


def drilled(machine, sample=100):
    return drill.drill(machine.bucket, machine.seal, machine.seen, sample, random.Random(1))


def packs_of(machine):
    return sorted(one.name for one in machine.bucket.list("packs"))


KINDS = pytest.mark.parametrize("bucket", ["files", "seaweedfs"], indirect=True)


@KINDS
def test_a_remote_that_is_whole_has_nothing_damaged(machine):
    found = drilled(machine)
    assert (found.listed, found.snapshots, found.damaged) == (3, 3, [])
    assert found.chunks == 60
    small = drilled(machine, 2)
    assert (small.listed, small.snapshots, small.chunks) == (3, 2, 4)


@KINDS
def test_a_damaged_pack_is_named_with_what_needs_it(machine):
    name, lost, *_ = packs_of(machine)
    data = bytearray(machine.bucket.get(name).data)
    data[300] ^= 1
    machine.bucket.overwrite(name, bytes(data))
    machine.bucket.delete([lost])
    found = drilled(machine)
    assert {one.name for one in found.damaged} == {name, lost}
    assert {one.snapshot_id for one in found.damaged} <= {"s0", "s1", "s2"}
    assert all(one.session_id == FACTS.session_id and one.why for one in found.damaged)


@KINDS
def test_a_manifest_that_is_gone_or_another_is_named(machine):
    first, second, _ = sorted(one.name for one in machine.bucket.list("manifests"))
    other = machine.bucket.get(second).data
    machine.bucket.overwrite(first, other)
    machine.bucket.delete([second])
    assert {one.name for one in drilled(machine).damaged} == {first, second}


def test_the_command_names_the_damage_and_its_status_says_it(tmp_path, monkeypatch, capsys):
    data_dir = tmp_path / "data"
    monkeypatch.setenv("JUPYTER_GPUCKPT_DATA_DIR", str(data_dir))
    joined = join(data_dir, Remote("share", f"file://{tmp_path}/share"))
    with store_of(data_dir) as store:
        save(store, "s1", *some_chunks(1, 3))
        joined.upload(store, "s1")
    verify = ["remote", "verify", "share", "--sample", "5"]
    assert app.main(verify) == 0
    out = capsys.readouterr().out
    assert "1 of 1 snapshot, 3 chunks with 3.1 MB: nothing damaged." in out
    [pack] = (tmp_path / "share/packs").iterdir()
    data = bytearray(pack.read_bytes())
    data[1000] ^= 1
    pack.write_bytes(data)
    assert app.main(verify) == 1
    assert f"Snapshot s1: packs/{pack.name}" in capsys.readouterr().err
    assert app.main([*verify, "--json"]) == 1
    [damage] = json.loads(capsys.readouterr().out)["drill"]["damaged"]
    assert (damage["snapshot_id"], damage["name"]) == ("s1", f"packs/{pack.name}")
    assert app.main(["remote", "verify", "share", "--sample", "0"]) == 2
