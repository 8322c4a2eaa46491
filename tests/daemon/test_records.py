"""What a record means to a daemon that did not write it."""

import fcntl
import os
import time

import msgspec
import pytest

from jupyter_gpuckpt import place
from jupyter_gpuckpt.daemon.records import KernelRecord, Records, check_kernel_id, recovered
from jupyter_gpuckpt.engine.tree.tree import Tree
from jupyter_gpuckpt.errors import ConfigurationError, DaemonUnavailable
from jupyter_gpuckpt.model import LaunchSpec, SnapshotInfo
from jupyter_gpuckpt.protocol import Owner, OwnerKind
from jupyter_gpuckpt.states import KernelState as S

NOW = 1000.0
TREE = Tree(10, 1, 11, 2, 12, 3, "/x")
OWNER = Owner("o", OwnerKind.SERVER, 1, 1.0)


@pytest.fixture
def here(tmp_path):
    return place.here(tmp_path)


@pytest.fixture
def elsewhere(here):
    """A container on the same machine, whose processes cannot be seen from here."""
    return msgspec.structs.replace(here, namespaces=[1, *here.namespaces[1:]])


def make(here, state, **fields):
    spec = LaunchSpec(fields.pop("kernel_id", "k"), ["x"], {}, "/", "/x")
    return KernelRecord(spec, OWNER, here, state=state, since=NOW, **fields)


def snapshot(reason, created):
    return SnapshotInfo(f"{reason}-{created}", "k", created, reason)


OLD, SAVED = snapshot("suspend", NOW - 1), snapshot("save", NOW + 1)
SUSPENDED = snapshot("suspend", NOW + 1)


@pytest.mark.parametrize(
    ("state", "alive", "snapshots", "becomes"),
    [
        (S.STARTING, False, [], None),
        (S.RUNNING, True, [], S.RUNNING),
        (S.RUNNING, False, [], S.LOST),
        (S.RUNNING, False, [OLD], S.LOST),
        (S.SAVING, True, [], S.RUNNING),
        (S.SAVING, False, [SAVED], S.LOST),
        (S.SUSPENDING, True, [], S.RUNNING),
        (S.SUSPENDING, True, [OLD], S.RUNNING),
        (S.SUSPENDING, True, [SUSPENDED], S.SUSPENDED),
        (S.SUSPENDING, False, [SUSPENDED, OLD], S.SUSPENDED),
        (S.SUSPENDING, False, [OLD], S.LOST),
        (S.SUSPENDED, False, [], S.SUSPENDED),
        (S.LOST, False, [], S.LOST),
    ],
)
def test_a_state_becomes_what_is_true(here, state, alive, snapshots, becomes):
    record = recovered(make(here, state, tree=TREE), alive=alive, snapshots=snapshots)
    assert (record and record.state) == becomes
    if record and record.state is S.LOST and state is not S.LOST:
        assert record.error.code == "kernel_lost"


@pytest.mark.parametrize("before", [S.SUSPENDED, S.LOST])
def test_a_resume_that_was_cut_off_leaves_what_was_before(here, before):
    record = make(here, S.RESUMING, previous=before, snapshot_id="s")
    assert recovered(record, alive=False, snapshots=[]).state is before


@pytest.mark.parametrize("state", [S.RUNNING, S.SAVING, S.SUSPENDING])
def test_a_kernel_that_ended_by_itself_is_forgotten(here, tmp_path, state):
    (tmp_path / "exit").write_text("0")
    record = make(here, state, tree=TREE, exit_path=str(tmp_path / "exit"))
    assert recovered(record, alive=False, snapshots=[]) is None


def test_a_record_comes_back_as_it_was(here, tmp_path):
    records = Records(tmp_path, here)
    record = make(here, S.RUNNING, tree=TREE, jupyter={"sessions": [{"path": "a.ipynb"}]})
    records.write("k", msgspec.json.encode(record))
    assert records.mine() == [record]
    assert (tmp_path / "kernels/k/record.json").stat().st_mode & 0o777 == 0o600
    records.forget("k")
    assert records.mine() == []
    assert not (tmp_path / "kernels/k").exists()


def test_a_record_that_cannot_be_read_hides_no_other(here, tmp_path, caplog):
    records = Records(tmp_path, here)
    records.write("k", msgspec.json.encode(make(here, S.RUNNING)))
    whole = msgspec.json.encode(make(here, S.RUNNING, name="a" * 100))
    for name, content in (
        ("bad", b'{"spec": {"env": {"TOKEN": "secret"}}'),
        ("text", whole.replace(b"a" * 100, b"\xff" * 100)),
        ("deep", b"[" * 100_000),
        ("anothers", whole),
    ):
        records.write(name, content)
    assert [record.kernel_id for record in records.mine()] == ["k"]
    for name in ("bad", "text", "deep", "anothers"):
        assert f"kernels/{name}/record.json" in caplog.text
    assert "secret" not in caplog.text


def test_what_a_killed_daemon_was_just_writing_is_removed(here, tmp_path):
    records = Records(tmp_path, here)
    records.write("k", msgspec.json.encode(make(here, S.SUSPENDED)))
    for kernel_id, age in (("k", 3600), ("gone", 3600), ("young", 0)):
        path = tmp_path / "kernels" / kernel_id / ".unfinished-record.json.1234"
        path.parent.mkdir(exist_ok=True)
        path.touch()
        os.utime(path, (time.time() - age,) * 2)
    records.hold()
    left = sorted(str(path.relative_to(tmp_path)) for path in (tmp_path / "kernels").rglob("*"))
    assert left == [
        "kernels/k",
        "kernels/k/record.json",
        "kernels/young",
        "kernels/young/.unfinished-record.json.1234",
    ]
    records.release()


def test_two_daemons_of_one_place_refuse_each_other(here, tmp_path):
    Records(tmp_path, here).hold()
    with pytest.raises(DaemonUnavailable):
        Records(tmp_path, here).hold()


def everything(record):
    return True


def taken_over(tmp_path, here, record):
    records = Records(tmp_path, here)
    records.write("k", msgspec.json.encode(record))
    taken = records.take_over(everything)
    assert all(record.place == here for record in taken)
    assert len(records.mine()) == len(taken)
    return bool(taken)


@pytest.mark.parametrize("state", [S.RUNNING, S.SUSPENDED])
def test_a_place_whose_daemon_left_is_taken_over(here, elsewhere, tmp_path, state):
    assert taken_over(tmp_path, here, make(elsewhere, state))


@pytest.mark.parametrize("state", [S.RUNNING, S.SUSPENDED])
def test_a_place_whose_daemon_lives_is_left_alone(here, elsewhere, tmp_path, state):
    Records(tmp_path, elsewhere).hold()
    assert not taken_over(tmp_path, here, make(elsewhere, state))


@pytest.mark.parametrize(
    ("state", "age", "expected"),
    [(S.RUNNING, 0, False), (S.RUNNING, 100, True), (S.SUSPENDED, 0, True)],
)
def test_a_killed_daemon_keeps_its_running_kernels_for_a_while(
    here, elsewhere, tmp_path, state, age, expected
):
    Records(tmp_path, elsewhere)
    lock = tmp_path / "places" / f"{elsewhere.key}.lock"
    lock.touch()
    os.utime(lock, (time.time() - age,) * 2)
    assert taken_over(tmp_path, here, make(elsewhere, state)) is expected


def test_running_kernels_that_can_be_seen_are_taken_over_at_once(here, tmp_path):
    other_cgroup = msgspec.structs.replace(here, cgroup="0::/another")
    Records(tmp_path, other_cgroup)
    (tmp_path / "places" / f"{other_cgroup.key}.lock").touch()
    assert taken_over(tmp_path, here, make(other_cgroup, S.RUNNING))


def test_a_daemon_that_leaves_gives_its_place_up(here, tmp_path):
    records = Records(tmp_path, here)
    records.hold()
    records.release()
    again = Records(tmp_path, here)
    again.hold()
    lock = tmp_path / "places" / f"{here.key}.lock"
    with lock.open() as file, pytest.raises(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    again.release()


@pytest.mark.parametrize("kernel_id", ["", ".", "..", "a/b", "../x", "a b", "x" * 129, "-x"])
def test_an_id_that_is_no_file_name_is_refused(kernel_id):
    with pytest.raises(ConfigurationError):
        check_kernel_id(kernel_id)
